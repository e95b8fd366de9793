// SPDX-License-Identifier: Apache-2.0

// LocalGradients: the trait of rules that in some steps need the unreduced gradients of each rank,
// because they reduce something smaller over the ranks themselves (1-bit Adam, 0/1 Adam, 1-bit
// LAMB). A plugin that replicates parameters asks before each backward whether to leave out its own
// reduction.
//
//   LocalGradients* local = optimizer.traits().local_gradients;        // null for most optimizers
//   optimizer.SetRanks({.group = dp, .rank = 0, .num_ranks = 4});      // once, at boost
//   const bool reduce = !local->TakesLocalGrad(group);                 // before each backward
//
// A local gradient is this rank's mean over its micro-batches; as in every other step, the caller
// divides by their number once. The answer of TakesLocalGrad depends only on the number of updates
// so far, so all ranks get the same one. Plugins that shard gradients refuse such an optimizer.
#ifndef APOGEE_OPTIM_CORE_LOCAL_GRADIENTS_H_
#define APOGEE_OPTIM_CORE_LOCAL_GRADIENTS_H_

#include <string>

#include "apogee/comm/group.h"

namespace apogee::optim {

struct GradientRanks {
  // The data-parallel ranks, over which gradients are averaged; all hold the same values. Null: one
  // rank.
  comm::GroupPtr group = nullptr;
  // The ranks that hold parts of one parameter; null: parameters are whole.
  comm::GroupPtr statistics = nullptr;
  // This rank among all ranks whose states are saved together.
  int rank = 0, num_ranks = 1;
};

class LocalGradients {
 public:
  virtual ~LocalGradients() = default;

  // The reason why this optimizer cannot run over several ranks with this clipping norm (0: none).
  // Empty: it can.
  virtual std::string ProblemOverRanks(double max_norm) const = 0;
  // See Optimizer::SetRanks, which calls it.
  virtual void SetRanks(const GradientRanks& ranks) = 0;
  // Whether the gradients of the parameter group must stay local in the next step.
  virtual bool TakesLocalGrad(int group) const = 0;
  // Whether TakesLocalGrad(group) can ever be true.
  virtual bool MayTakeLocalGrad(int group) const = 0;
  // Makes weights and states the same on all ranks, for optimizers whose ranks step alone at times.
  // Call before an evaluation and before a save. Collective over the group.
  virtual void SyncReplicas() {}
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CORE_LOCAL_GRADIENTS_H_
