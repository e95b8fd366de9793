// SPDX-License-Identifier: Apache-2.0

// Exchanges between ranks around a checkpoint: texts of any length, and one status for all.
//
//   std::vector<std::string> all = GatherTexts(mine, group);     // in rank order
//   APOGEE_RETURN_IF_ERROR(AgreeOnStatus(status, group)); // the same error on every rank
//
// Collective; a null group is one rank.
#ifndef APOGEE_CHECKPOINT_AGREEMENT_H_
#define APOGEE_CHECKPOINT_AGREEMENT_H_

#include <string>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/core/status.h"

namespace apogee::checkpoint {

// Returns every rank's `text`, which may be any bytes, on every rank.
std::vector<std::string> GatherTexts(const std::string& text, const comm::GroupPtr& group);

// Ok if every rank's status is. Else returns, on every rank, the error of the lowest rank that has
// one; names that rank if there are several.
absl::Status AgreeOnStatus(const absl::Status& status, const comm::GroupPtr& group);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_AGREEMENT_H_
