// SPDX-License-Identifier: Apache-2.0

// StageGradients: what the gradients of a pipeline's stages have to do with each other.
//
//   StageGradients gradients(model, cut, group_of, is_of_one_chunk);
//   gradients.Begin();  ... the schedule ...;  gradients.End(passes, reduce);
//
// A parameter that several stages use (a tied embedding) is a copy on each; their gradients are
// added, once, before ranks of the data-parallel group average. Communicated per End that reduces,
// over the stages that hold such parameters: which of them have a gradient, and these gradients.
#ifndef APOGEE_PLUGINS_PIPELINE_STAGE_GRADIENTS_H_
#define APOGEE_PLUGINS_PIPELINE_STAGE_GRADIENTS_H_

#include <functional>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/plugins/backward_passes.h"
#include "apogee/plugins/pipeline/cut.h"

namespace apogee::pipeline {

class StageGradients {
 public:
  // The group of these stages' ranks with this rank's place on the other axes; null for one.
  using GroupOf = std::function<comm::GroupPtr(const std::vector<int>& stages)>;

  // `is_of_one_chunk`: whether Executor::ChunkOf knows one.
  StageGradients(const nn::Module& model, const Cut& cut, const GroupOf& group_of,
                 const std::function<bool(const autograd::Parameter&)>& is_of_one_chunk);

  // Before the passes of a backward.
  void Begin();
  // After them. Collective over these stages and the data-parallel group if `reduce`.
  void End(BackwardPasses& passes, bool reduce);

 private:
  struct Tied {
    comm::GroupPtr group;
    std::vector<autograd::ParameterPtr> parameters;
  };

  void AddUp(const Tied& tied) const;

  std::vector<Tied> tied_;                        // by holders
  std::vector<const autograd::Parameter*> late_;  // that no chunk's last pass reduces
  bool reduced_ = false;                          // the last End was a reducing one
};

}  // namespace apogee::pipeline

#endif  // APOGEE_PLUGINS_PIPELINE_STAGE_GRADIENTS_H_
