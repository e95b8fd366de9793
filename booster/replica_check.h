// SPDX-License-Identifier: Apache-2.0

// CheckReplicas: checks that ranks which hold copies of the same elements hold equal values. A save
// takes parts from different ranks and would mix copies that have drifted apart. SyncReplicas makes
// them equal where they drift by design (0/1 Adam).
//
//   SyncReplicas(plugin, optimizer);
//   APOGEE_RETURN_IF_ERROR(CheckReplicas("save_model", parts, plugin.group()));
//
// CheckReplicas costs one pass over this rank's data (a hash, 10 GB/s per core) and one all-gather
// of 16 bytes and the name per part.
#ifndef APOGEE_BOOSTER_REPLICA_CHECK_H_
#define APOGEE_BOOSTER_REPLICA_CHECK_H_

#include <vector>

#include "apogee/checkpoint/planned_save.h"
#include "apogee/comm/group.h"
#include "apogee/plugins/plugin.h"

namespace apogee {

// Called before every save, and before loads that replace only a part. Collective.
void SyncReplicas(Plugin& plugin, optim::Optimizer& optimizer);

// FailedPrecondition, the same on every rank, naming the first part for which ranks hold the same
// elements with different values. Collective; a null group is one rank, with nothing to do.
absl::Status CheckReplicas(const char* what, const std::vector<checkpoint::TensorPart>& parts,
                           const comm::GroupPtr& group);

}  // namespace apogee

#endif  // APOGEE_BOOSTER_REPLICA_CHECK_H_
