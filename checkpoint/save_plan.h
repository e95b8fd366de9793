// SPDX-License-Identifier: Apache-2.0

// SavePlan: which rank writes which parts, the same on every rank.
//
//   APOGEE_ASSIGN_OR_RETURN(SavePlan plan, MakeSavePlan(parts, group));
//   for (size_t index : plan.mine) ... write parts[index] ...
#ifndef APOGEE_CHECKPOINT_SAVE_PLAN_H_
#define APOGEE_CHECKPOINT_SAVE_PLAN_H_

#include <map>
#include <string>
#include <vector>

#include "apogee/checkpoint/format/manifest.h"
#include "apogee/checkpoint/planned_save.h"

namespace apogee::checkpoint {

struct SavePlan {
  std::vector<size_t> mine;  // indices of the parts that this rank writes
  // All tensors with their slices, in the order in which their writers write them; without digests.
  std::map<std::string, LogicalTensor> tensors;
  // By rank: the slices (tensor, index) that it writes, in the order of its file's entries.
  std::vector<std::vector<std::pair<std::string, size_t>>> written_by;
};

// The file that a rank writes.
std::string RankFileName(int rank);

// Collective. InvalidArgument, on every rank, for an invalid tensor name, if ranks disagree about a
// tensor's shape or dtype, or if their segments overlap without being equal. Missing elements of a
// tensor are found only when the manifest is read back.
absl::StatusOr<SavePlan> MakeSavePlan(const std::vector<TensorPart>& parts,
                                      const comm::GroupPtr& group);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_SAVE_PLAN_H_
