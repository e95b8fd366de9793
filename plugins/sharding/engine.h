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
//   BeforeStep      at the start of the optimizer's step: checks the loop
//   Decided         updates the loss scale
//   AfterStep       distributes the updated values
//
// The last three are events of the step, which the engine hears as a StepListener. It tells the
// events of backward, of gradients and of values. All checks of the loop depend only on the order
// of calls, so either every rank throws or none does.
//
// Internal. The plugins choose an engine and its options.
#ifndef APOGEE_PLUGINS_SHARDING_ENGINE_H_
#define APOGEE_PLUGINS_SHARDING_ENGINE_H_

#include <functional>
#include <memory>
#include <string>

#include "apogee/comm/group.h"
#include "apogee/core/step_listener.h"
#include "apogee/layout/layout.h"
#include "apogee/nn/module.h"
#include "apogee/optim/optimizer.h"
#include "apogee/optim/step/loss_scaler.h"
#include "apogee/plugins/sharding/backward_passes.h"
#include "apogee/plugins/sharding/cut_parameters.h"
#include "apogee/plugins/training_options.h"

namespace apogee {

class DataParallelEngine : public BackwardPasses, protected StepListener {
 public:
  // An optimizer that is still alive refuses to step from then on.
  ~DataParallelEngine() override;
  DataParallelEngine(const DataParallelEngine&) = delete;
  DataParallelEngine& operator=(const DataParallelEngine&) = delete;

  // Throws the Error that Configure would throw, as far as this rank can tell. Changes nothing.
  virtual void Check(nn::Module& model, optim::Optimizer& optimizer) const;
  // Collective. Calls Check first. A loss scale that the optimizer already has stays: the loop
  // multiplies its loss by it.
  virtual optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer) = 0;
  // Collective if it reduces.
  virtual void Backward(const Tensor& loss);
  // Throws Error on a second backward before step() if the optimizer updates inside backward, and
  // once the optimizer is gone.
  bool BeginBackward() override;
  // Plugin::NoSync; the handle may outlive the engine.
  std::shared_ptr<void> NoSync();
  // Null except for fp16.
  optim::LossScaler* loss_scaler() {
    Settle();
    return scaler_.get();
  }

  // As Plugin's, for this rank's part of the model.
  virtual Layout LayoutOf(const autograd::Parameter& parameter) const {
    return Layout(parameter.shape());
  }
  virtual Tensor WholeValue(const autograd::Parameter& parameter) const { return parameter.data(); }

  const comm::GroupPtr& group() const { return group_; }
  const TrainingOptions& training() const { return training_; }

 protected:
  // `plugin`: its name, for messages. `problems`: of options that the caller has checked. Throws
  // Error that lists every wrong option. Only fp16 has a dynamic loss scale.
  DataParallelEngine(std::string plugin, comm::GroupPtr group, const TrainingOptions& training,
                     const CutParameters& cut, std::string problems);

  // From now on the engine listens to the optimizer's steps. Sets clipping and the loss scale.
  void Listen();
  void BeforeStep() override;
  void Decided() override;
  void AfterStep() override { num_backwards_ = 0; }
  double loss_scale() const {
    Settle();
    return scaler_ != nullptr ? scaler_->scale() : 1;
  }
  // The gradient of the loss that backward starts from: that scale.
  Tensor LossGradient(const Tensor& loss) const {
    return Tensor::Full(loss.shape(), loss.dtype(), loss_scale(), loss.context());
  }
  // The backward has failed and its gradients are gone: does not count it.
  void ForgetBackward() { num_backwards_ = 0; }
  // Makes the optimizer sum statistics over the ranks that have parts of one tensor.
  void SumStatistics(optim::Optimizer& optimizer, const comm::GroupPtr& without_cut) const;
  bool is_cut() const { return cut_.statistics_group != nullptr; }
  // The part of the declared parameter that this rank's Parameter has.
  Layout PartOf(const autograd::Parameter& parameter) const {
    return is_cut() ? cut_.part_of(parameter) : Layout(parameter.shape());
  }

  const std::string plugin_;
  const comm::GroupPtr group_;
  const TrainingOptions training_;
  const CutParameters cut_;
  const DType dtype_;
  Watched<optim::Optimizer> optimizer_;  // set by Configure

 private:
  void SetLossScale() const;
  // Makes the scaler hear of the last step, which a GPU may have decided.
  void Settle() const {
    if (scaler_ != nullptr && optimizer_ != nullptr && !optimizer_.is_gone()) {
      optimizer_->last_step();
    }
  }

  std::unique_ptr<optim::LossScaler> scaler_;
  double own_scale_ = 1;         // the loop's own scale
  std::string single_backward_;  // name of an optimizer that cannot accumulate
  int64_t num_backwards_ = 0;    // since the last step
  bool unreduced_ = false;       // the last backward kept gradients local
  std::shared_ptr<int> no_sync_depth_ = std::make_shared<int>(0);  // live handles
  bool configured_ = false;
  Subscription own_;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_SHARDING_ENGINE_H_
