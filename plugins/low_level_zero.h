// SPDX-License-Identifier: Apache-2.0

// LowLevelZeroPlugin: data parallelism with optimizer states (stage 1) and gradients (stage 2)
// sharded over the ranks (ZeRO; Rajbhandari et al., SC 2020). Parameters stay whole on every rank.
//
//   comm::launch({.num_ranks = 4}, [&](comm::World& world) {
//     const TrainingOptions training{.precision = Precision::kBf16, .max_norm = 1.0};
//     LowLevelZeroPlugin plugin(world.group(), training, {.stage = 2});
//     Booster booster(plugin);
//     auto boosted = booster.boost(model, optimizer);       // any optimizer of the registry
//     ... the ordinary loop ...
//   });
//
// The update equals that of one rank with the whole batch, for every optimizer. Statistics of whole
// tensors (Adafactor, CAME, Lamb, ScaledAdam, GaLore, 8-bit blocks, the norm that max_norm clips)
// are summed over the shards. The optimizer is bound in place: it keeps its groups, options, states
// and schedulers.
//
// Bytes per rank, for n ranks and N elements:
//
//   stage 1:  N b + N g + N s / n
//   stage 2:  N b + N g / n + N s / n
//
//   b  bytes of a parameter's element
//   g  bytes of a gradient's element: 4 for bf16 and fp16, else b
//   s  bytes of the states of an element, with masters (4 for bf16 and fp16)
//
// One or two open chunks of about bucket_bytes come on top.
//
// After backward, gradients are on shards, in the optimizer's views. Parameter::grad() is absent,
// and Parameter::zero_grad() clears both. To change gradients use hooks (Parameter::AddGradHook),
// which see this rank's gradients. Gradients of parameters that the optimizer does not hold are
// averaged and stay in Parameter::grad().
//
// A step sends each rank's updated shard to all ranks; reading a parameter waits for it. Missing
// gradients and accumulation work as in DdpPlugin.
#ifndef APOGEE_PLUGINS_LOW_LEVEL_ZERO_H_
#define APOGEE_PLUGINS_LOW_LEVEL_ZERO_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/chunk/gradient_chunks.h"
#include "apogee/chunk/parameter_chunks.h"
#include "apogee/plugins/backward_passes.h"
#include "apogee/plugins/hybrid/cut_parameters.h"
#include "apogee/plugins/plugin.h"
#include "apogee/plugins/step_guard.h"
#include "apogee/plugins/training_options.h"
#include "apogee/plugins/zero/shard_gradients.h"

namespace apogee {

struct LowLevelZeroOptions {
  int stage = 2;  // 1 or 2
  // Sum gradients over the ranks in this precision. Default: the gradients' own.
  std::optional<Precision> communication_dtype = {};
  // Gather updated parameters while the next forward is already running.
  bool overlap_gather = true;
  // bf16, fp16: keep f32 masters. Without masters a step rounds its result and loses the remainder.
  bool master_weights = true;
  // Keep states and masters in host memory.
  bool offload_states = false;
};

class LowLevelZeroPlugin : public Plugin, public BackwardPasses {
 public:
  // `group`: the ranks to shard over; null for one rank. Throws Error listing every bad option.
  explicit LowLevelZeroPlugin(comm::GroupPtr group, const TrainingOptions& training = {},
                              const LowLevelZeroOptions& options = {});
  // Internal: for a plugin that has cut the parameters.
  LowLevelZeroPlugin(comm::GroupPtr group, const TrainingOptions& training,
                     const LowLevelZeroOptions& options, const CutParameters& cut);

  std::string name() const override { return "low_level_zero"; }
  // Throws the Error that Configure would throw, as far as this rank can tell. Changes nothing.
  void Check(const nn::Module& model, optim::Optimizer& optimizer) const;
  // Collective. Throws Error, before anything has changed, on a second call and for an optimizer
  // that does not support shards or has been bound before. Throws Error on every rank when the
  // ranks' models or optimizers differ.
  optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer) override;
  // Collective, except under NoSync.
  void Backward(const Tensor& loss, optim::Optimizer& optimizer) override;
  bool BeginBackward() override { return guard_->OnBackward(); }
  void RunPass(const std::function<void()>& backward, const chunk::GradientPass& pass) override;
  bool ReducesEachPass() const override { return options_.stage == 2; }
  std::shared_ptr<void> NoSync() override { return guard_->NoSync(); }
  comm::GroupPtr group() const override { return group_; }
  comm::GroupPtr data_group() const override { return group_; }
  optim::LossScaler* loss_scaler() override { return guard_->loss_scaler(); }

  // 1 except for fp16.
  double loss_scale() const { return guard_->loss_scale(); }
  // After boost: the chunks that hold the parameters.
  const chunk::ParameterChunks& chunks() const { return *parameters_; }
  // After boost: the context that allocates the states. It is the model's unless offload_states.
  const ContextPtr& state_context() const { return state_context_; }

 private:
  void CheckRoom(optim::Optimizer& optimizer) const;
  std::vector<chunk::ChunkSpec> Plan(optim::Optimizer& optimizer) const;
  void Bind(optim::ParamView& view, const Tensor& old_value, const Tensor& shard,
            const Layout& layout) const;

  comm::GroupPtr group_;
  TrainingOptions training_;
  LowLevelZeroOptions options_;
  CutParameters cut_;
  DType dtype_;
  std::optional<DType> communication_dtype_;
  ContextPtr state_context_;
  std::vector<autograd::ParameterPtr> sharded_;  // in the order backward completes them
  std::vector<optim::ParamView*> views_;         // of sharded_
  std::unique_ptr<ShardGradients> shards_;
  std::unique_ptr<StepGuard> guard_;
  std::shared_ptr<chunk::ParameterChunks> parameters_;
  std::unique_ptr<chunk::GradientChunks> gradients_;
  std::unique_ptr<chunk::GradientChunks> unheld_gradients_;  // of unheld parameters
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_LOW_LEVEL_ZERO_H_
