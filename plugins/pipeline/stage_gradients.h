// SPDX-License-Identifier: Apache-2.0

// StageGradients: adds the gradients of parameters that several pipeline stages use.
//
//   StageGradients gradients(model, cut, group_of, is_of_one_chunk);
//   gradients.Begin();  ... the schedule ...;  gradients.End(passes, reduce);
//
// A parameter that several stages use (a tied embedding) is a copy on each. Their gradients are
// added once, before the ranks of the data-parallel group average. Each End that reduces
// communicates, over the stages that hold such parameters, which of them have a gradient, and these
// gradients.
#ifndef APOGEE_PLUGINS_PIPELINE_STAGE_GRADIENTS_H_
#define APOGEE_PLUGINS_PIPELINE_STAGE_GRADIENTS_H_

#include <functional>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/plugins/pipeline/cut.h"
#include "apogee/plugins/sharding/backward_passes.h"

namespace apogee::pipeline {

class StageGradients {
 public:
  // Returns the group of the ranks of these stages that share this rank's place on the other axes;
  // null for one rank.
  using GroupOf = std::function<comm::GroupPtr(const std::vector<int>& stages)>;

  // `is_of_one_chunk`: whether only one chunk uses the parameter (Executor::ChunkOf is not -1).
  StageGradients(const nn::Module& model, const Cut& cut, const GroupOf& group_of,
                 const std::function<bool(const autograd::Parameter&)>& is_of_one_chunk);

  // Call it before the passes of a backward.
  void Begin();
  // Call it after them. If `reduce`, collective over these stages and the data-parallel group.
  void End(BackwardPasses& passes, bool reduce);

 private:
  struct Tied {
    comm::GroupPtr group;
    std::vector<autograd::ParameterPtr> parameters;
  };

  void AddUp(const Tied& tied) const;

  std::vector<Tied> tied_;                        // by holders
  std::vector<const autograd::Parameter*> late_;  // not reduced by any chunk's last pass
  bool reduced_ = false;                          // the last End reduced
};

}  // namespace apogee::pipeline

#endif  // APOGEE_PLUGINS_PIPELINE_STAGE_GRADIENTS_H_
