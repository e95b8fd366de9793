// SPDX-License-Identifier: Apache-2.0

// Sabotage: ways to break a boosted run on purpose, which show that the matrix sees them.
//
//   local_stats      the optimizer's statistics and clipping norm are those of this rank's part
//   drop_collective  gradients are not reduced over the ranks
//   none_as_zero     an absent gradient becomes one of zeros
//   no_update        steps do not happen
#ifndef APOGEE_TOOLS_MATRIX_SABOTAGE_H_
#define APOGEE_TOOLS_MATRIX_SABOTAGE_H_

#include <memory>
#include <string>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/optim/optimizer.h"

namespace apogee::tools {

enum class Sabotage { kNone, kLocalStats, kDropCollective, kNoneAsZero, kNoUpdate };

// "none" first.
std::vector<std::string> SabotageNames();
Sabotage SabotageFromName(const std::string& name);

// `inner` without its sums: all_reduce leaves the tensor as it is, reduce_scatter takes this rank's
// slice of its own input. Maxima and everything that moves data are forwarded.
class UnsummedGroup : public comm::Group {
 public:
  explicit UnsummedGroup(comm::GroupPtr inner);
  comm::GroupPtr Duplicate(std::chrono::milliseconds timeout) override {
    return std::make_shared<UnsummedGroup>(inner_->Duplicate(timeout));
  }

 protected:
  std::shared_ptr<comm::Work> Submit(comm::CollectiveCall call) override;

 private:
  comm::GroupPtr inner_;
};

// Before a step: zeros for every absent gradient of a trainable parameter.
void FillAbsentGradients(optim::Optimizer& optimizer);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_MATRIX_SABOTAGE_H_
