// SPDX-License-Identifier: Apache-2.0

// CheckReplicas: whether what several ranks claim to hold alike is alike. A save takes parts of it
// from each of them, and would mix ranks that have drifted apart.
//
//   APOGEE_RETURN_IF_ERROR(CheckReplicas("save_model", parts, plugin.group()));
//
// Costs one pass over what this rank holds (a hash, 10 GB/s and core) and one all-gather of 16
// bytes and the name per part.
#ifndef APOGEE_BOOSTER_REPLICA_CHECK_H_
#define APOGEE_BOOSTER_REPLICA_CHECK_H_

#include <vector>

#include "apogee/checkpoint/planned_save.h"
#include "apogee/comm/group.h"

namespace apogee {

// FailedPrecondition, the same on every rank, that names the first part of which ranks that hold
// the same elements hold other values. Collective; null: one rank, nothing to do.
absl::Status CheckReplicas(const char* what, const std::vector<checkpoint::TensorPart>& parts,
                           const comm::GroupPtr& group);

}  // namespace apogee

#endif  // APOGEE_BOOSTER_REPLICA_CHECK_H_
