// SPDX-License-Identifier: Apache-2.0

// DataParallelEngine: trains a model over a data-parallel group. It owns everything between boost
// and the updated values. Three engines differ in the data that each rank keeps:
//
//   ReplicatedEngine   everything (DdpPlugin)
//   ResidentEngine     whole values; shards of states (stage 1), also of gradients (stage 2)
//   GatheredEngine     shards of everything; values are gathered while they are used (stage 3)
//
// The last two are ShardedEngines.
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
#include <vector>

#include "apogee/chunk/gradient_chunks.h"
#include "apogee/comm/group.h"
#include "apogee/core/step_listener.h"
#include "apogee/layout/layout.h"
#include "apogee/nn/module.h"
#include "apogee/optim/optimizer.h"
#include "apogee/optim/step/loss_scaler.h"
#include "apogee/plugins/precision.h"
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

  // PrepareReplicas over the group, or without the values, which TakeValue then gives one by one.
  // Both leave out what CutParameters::is_synced says.
  void Prepare(nn::Module& model, const optim::Optimizer& optimizer, bool with_values = true) const;
  void TakeValue(autograd::Parameter& parameter) const;
  // From now on the engine listens to the optimizer's steps. Sets clipping and the loss scale.
  void Listen();
  void BeforeStep() override;
  void Decided() override;
  void AfterStep() override { num_backwards_ = 0; }
  double loss_scale() const {
    Settle();
    return scaler_ != nullptr ? scaler_->scale() : 1;
  }
  // Puts it into the optimizer's step options, times the loop's own scale.
  void SetLossScale() const;
  // The gradient of the loss that backward starts from: that scale.
  Tensor LossGradient(const Tensor& loss) const {
    return Tensor::Full(loss.shape(), loss.dtype(), loss_scale(), loss.context());
  }
  // The backward has failed and its gradients are gone: does not count it.
  void ForgetBackward() { num_backwards_ = 0; }
  bool is_cut() const { return cut_.statistics_group != nullptr; }
  // The part of the declared parameter that this rank's Parameter has.
  Layout PartOf(const autograd::Parameter& parameter) const {
    return is_cut() ? cut_.part_of(parameter) : Layout(parameter.shape());
  }

  const std::string plugin_;
  const comm::GroupPtr group_;
  const TrainingOptions training_;
  const CutParameters cut_;
  PrecisionPolicy policy_;               // set by Configure
  Watched<optim::Optimizer> optimizer_;  // set by Configure

 private:
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

// The part that the engines of stages 1 to 3 share. The optimizer works on shards: its views are
// bound to them, and gradients reach them as means.
//
// The views hold the gradients; the parameters have none of their own. While the engine lives,
// zero_grad through a parameter clears the view's gradient. Other uses of a parameter's gradient,
// such as clipping, throw Error with the remedy.
class ShardedEngine : public DataParallelEngine {
 public:
  void Check(nn::Module& model, optim::Optimizer& optimizer) const override;
  optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer) override;
  bool BeginBackward() override;
  void RunPass(const std::function<void()>& backward, const chunk::GradientPass& pass) override;

 protected:
  using DataParallelEngine::DataParallelEngine;

  // Parameters that are sharded over the same ranks. Chunks number the parameters of their share.
  struct Share {
    comm::GroupPtr group;
    size_t first = 0, count = 0;  // in sharded_
    size_t first_chunk = 0;       // among the chunks of all shares
    bool is_experts = false;
    std::unique_ptr<chunk::GradientChunks> gradients = {};
  };

  // The policy, called by Configure in this order:
  // Whether frozen parameters are sharded, too. If so, PlaceValues makes all values equal on the
  // ranks, and converts those of unheld_.
  virtual bool shards_frozen() const = 0;
  // The chunks of a share. A chunk's parameters have one dtype.
  virtual std::vector<chunk::ChunkSpec> Plan(nn::Module& model, const Share& share) const = 0;
  // Moves the values of all shares into chunks, and calls Bind for each. `plans`: by share.
  virtual void PlaceValues(nn::Module& model,
                           const std::vector<std::vector<chunk::ChunkSpec>>& plans) = 0;
  virtual chunk::GradientChunkOptions GradientOptions(optim::Optimizer& optimizer,
                                                      const Share& share) = 0;

  // Takes this rank's part of the mean of a micro-batch's gradient. Here: adds it to the view's.
  virtual void OnMean(size_t index, const Tensor& mean);
  // Throws Error, too, if a parameter was given a gradient of its own, which no step would see.
  void BeforeStep() override;

  // `index`: in sharded_. Binds the view of a parameter to its shard. The masters are made from the
  // value before it is rounded to the working dtype, because they keep the bits that rounding
  // drops.
  void Bind(size_t index, const Tensor& old_value, const Tensor& shard, const Layout& layout) const;
  // Runs `backward`, in which gradients become means on shards.
  void Reduce(const std::function<void()>& backward, const chunk::GradientPass& pass);
  // Runs `backward`, which calls Reduce. Then views have the gradients that some rank has.
  void TakeMeans(const std::function<void()>& backward);
  std::vector<autograd::ParameterPtr> Parameters(const Share& share) const;
  // By chunk: the dtype of its values.
  std::vector<DType> DTypesOf(const Share& share, const std::vector<chunk::ChunkSpec>& plan) const;

  struct Sharded {
    autograd::ParameterPtr parameter;
    optim::ParamView* view;                                           // null: not in the optimizer
    int64_t cut_multiple;                                             // ParamTraits::cut_multiple
    std::shared_ptr<const autograd::GradPlace> grad_place = nullptr;  // the view
    Tensor mean = {};  // a new gradient, until its presence is known
  };
  std::vector<Sharded> sharded_;                // in the order backward completes them, by share
  std::vector<autograd::ParameterPtr> unheld_;  // not in the optimizer, and not sharded
  std::vector<Share> shares_;
  std::unique_ptr<chunk::GradientChunks> unheld_gradients_;
  bool keep_masters_ = true;

 private:
  // Decides the fate of each parameter.
  void Choose(const nn::Module& model, optim::Optimizer& optimizer);
  void PlaceGradients();

  std::vector<autograd::ParameterPtr> frozen_;  // at boost, so no shards exist to train them
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_SHARDING_ENGINE_H_
