// SPDX-License-Identifier: Apache-2.0

// DataParallelEngine: trains a model over a data-parallel group. It owns everything between boost
// and the updated values. Three engines differ in the data that each rank keeps:
//
//   ReplicatedEngine   everything (DdpPlugin)
//   ResidentEngine     whole values; shards of states (stage 1), also of gradients (stage 2)
//   GatheredEngine     shards of everything; values are gathered while they are used (stage 3)
//
//   ReplicatedEngine engine(group, training, {}, {});
//   optim::Optimizer& configured = engine.Configure(model, optimizer);
//   engine.Backward(loss);
//
// The order of a step:
//
//   BeginBackward   checks the loop, and tells whether this backward reduces
//   RunPass         backward; gradients become means over the group, on shards if there are shards
//   BeforeStep      at the start of the optimizer's step, which decides and updates
//   AfterStep       distributes the updated values
//
// Internal. The plugins choose an engine and its options.
#ifndef APOGEE_PLUGINS_SHARDING_ENGINE_H_
#define APOGEE_PLUGINS_SHARDING_ENGINE_H_

#include <functional>
#include <string>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/core/hooks.h"
#include "apogee/layout/layout.h"
#include "apogee/nn/module.h"
#include "apogee/optim/optimizer.h"
#include "apogee/plugins/sharding/backward_passes.h"
#include "apogee/plugins/sharding/cut_parameters.h"
#include "apogee/plugins/sharding/step_guard.h"
#include "apogee/plugins/training_options.h"

namespace apogee {

class DataParallelEngine : public BackwardPasses {
 public:
  DataParallelEngine(const DataParallelEngine&) = delete;
  DataParallelEngine& operator=(const DataParallelEngine&) = delete;

  // Throws the Error that Configure would throw, as far as this rank can tell. Changes nothing.
  virtual void Check(nn::Module& model, optim::Optimizer& optimizer) const;
  // Collective. Calls Check first.
  virtual optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer) = 0;
  // Collective if it reduces.
  virtual void Backward(const Tensor& loss);
  bool BeginBackward() override { return guard_.OnBackward(); }

  // As Plugin's, for this rank's part of the model.
  virtual Layout LayoutOf(const autograd::Parameter& parameter) const {
    return Layout(parameter.shape());
  }
  virtual Tensor WholeValue(const autograd::Parameter& parameter) const { return parameter.data(); }

  const comm::GroupPtr& group() const { return group_; }
  const TrainingOptions& training() const { return training_; }
  StepGuard& guard() { return guard_; }

 protected:
  // `plugin`: its name, for messages. `problems`: of options that the caller has checked. Throws
  // Error that lists every wrong option.
  DataParallelEngine(std::string plugin, comm::GroupPtr group, const TrainingOptions& training,
                     const CutParameters& cut, std::string problems);

  // From now on the optimizer's steps call BeforeStep and AfterStep.
  void AttachTo(optim::Optimizer& optimizer);
  virtual void BeforeStep(optim::Optimizer& /*optimizer*/) {}
  virtual void AfterStep(optim::Optimizer& /*optimizer*/) {}
  // Makes the optimizer sum statistics over the ranks that have parts of one tensor.
  void SumStatistics(optim::Optimizer& optimizer, const comm::GroupPtr& without_cut) const;
  bool is_cut() const { return cut_.statistics_group != nullptr; }

  const std::string plugin_;
  const comm::GroupPtr group_;
  const TrainingOptions training_;
  const CutParameters cut_;
  const DType dtype_;
  StepGuard guard_;
  std::vector<Subscription> hooks_;
  bool configured_ = false;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_SHARDING_ENGINE_H_
