// SPDX-License-Identifier: Apache-2.0

// LocalGradientOptimizer: optimizers that, in some steps, want the gradients of each rank as they
// are, because they reduce something smaller over the ranks themselves (1-bit Adam, 0/1 Adam, 1-bit
// LAMB). A plugin that replicates parameters asks before each backward and leaves out its own
// reduction.
//
//   auto* local = dynamic_cast<optim::LocalGradientOptimizer*>(&optimizer);
//   local->SetRanks({.group = dp, .rank = 0, .num_ranks = 4});         // at boost, once
//   const bool reduce = !local->TakesLocalGrad(group);                 // before each backward
//
// A local gradient is this rank's mean over its micro-batches: the caller divides by their number,
// once, as in every other step. What is asked is a function of the number of updates so far, so
// that all ranks hear the same. Plugins that shard gradients refuse such an optimizer.
#ifndef APOGEE_OPTIM_LOCAL_GRADIENTS_H_
#define APOGEE_OPTIM_LOCAL_GRADIENTS_H_

#include <string>

#include "apogee/comm/group.h"

namespace apogee::optim {

struct GradientRanks {
  // The ranks whose gradients make one mean; each holds the same values. Null: one rank.
  comm::GroupPtr group = nullptr;
  // The ranks that hold parts of one parameter; null: parameters are whole.
  comm::GroupPtr statistics = nullptr;
  // This rank among all whose states are saved together.
  int rank = 0, num_ranks = 1;
};

class LocalGradientOptimizer {
 public:
  virtual ~LocalGradientOptimizer() = default;

  // What is wrong with running it over several ranks with this clipping norm; empty: nothing.
  virtual std::string ProblemOverRanks(double max_norm) const = 0;
  // After views were bound. Throws Error when states that were loaded belong to other ranks.
  virtual void SetRanks(const GradientRanks& ranks) = 0;
  // Whether the gradients of the parameter group are to stay local in the step to come.
  virtual bool TakesLocalGrad(int group) const = 0;
  // Whether that may ever be so.
  virtual bool MayTakeLocalGrad(int group) const = 0;
  // Makes the weights and states the same on all ranks, where ranks step alone in between. Before
  // an evaluation and before a save. Collective over the group.
  virtual void SyncReplicas() {}
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_LOCAL_GRADIENTS_H_
