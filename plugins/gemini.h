// SPDX-License-Identifier: Apache-2.0

// GeminiPlugin: data parallelism in which everything is sharded over the ranks: parameters,
// gradients and optimizer states (ZeRO stage 3; Rajbhandari et al., SC 2020). A module's parameters
// are whole on a rank while the module runs, and at no other time.
//
//   comm::launch({.num_ranks = 4}, [&](comm::World& world) {
//     model.InitializeLazily(world.context(), {.seed = 1});  // no memory yet
//     GeminiPlugin plugin(world.group(), {.precision = "bf16", .max_norm = 1.0});
//     Booster booster(plugin);
//     auto boosted = booster.boost(model, optimizer);       // any optimizer of the registry
//     ... the ordinary loop ...
//   });
//
// The update is that of one rank with the whole batch, as with LowLevelZeroPlugin, whose way of
// binding optimizers to shards this is. Parameters lie in chunks: those of one module in
// ceil(bytes / chunk_bytes) of them, trainable and frozen ones apart. One all-gather per chunk
// brings its values before the module's forward and before its part of backward; afterwards the
// memory is given back. Rules for modules, and for ranks that differ: plugins/module_windows.h.
//
// Bytes per rank, n ranks, N elements in b bytes, gradients in g (4 for bf16 and fp16, else b),
// states s per element (masters included, 4 for bf16 and fp16):
//   (N b + N g + N s) / n, and while a module runs the chunks of it and of those it runs in;
// a chunk is padded to a multiple of 8 elements per rank, and so that no two chunks have one size.
//
// boost takes rank 0's values, parameter by parameter in one order on all ranks, cuts this rank's
// part out and drops the rest. After nn::Module::InitializeLazily no rank holds more at any time
// than its shards, the masters that come from f32 values, and one whole parameter: a model that is
// larger than a rank's memory can be built. Values and masters are those of Initialize, bit for
// bit. A rank other than 0 receives its lazy values and makes none. (Initialize makes the model
// whole on every rank first.)
//
// Between uses Parameter::data() is this rank's part, [n] (LayoutOf), and Parameter::value() throws
// Error. Under no_sync gradients stay local, whole on every rank, and add up; results are exact.
// Parameters that the optimizer does not hold and that are not frozen stay whole: another optimizer
// may step on them.
//
// LOMO and AdaLomo update inside backward: before each gather all ranks reduce, update and free the
// chunks whose gradients all of them have (one more small collective per gather), the others at its
// end. Where every rank uses every parameter, gradients then take, instead of N g / n, the chunks
// that are completed between two gathers, a module's as a rule, and one parameter. With max_norm,
// fp16 or a NonFinitePolicy but kProceed backward walks over the graph twice, first for the norm,
// and gathers twice as often.
//
// Where chunks live: plugins/chunk_homes.h. With tensor parallelism:
// HybridParallelOptions::zero_stage = 3. Not there yet: sums in another dtype
// (communication_dtype), runs without masters (master_weights = false).
#ifndef APOGEE_PLUGINS_GEMINI_H_
#define APOGEE_PLUGINS_GEMINI_H_

#include <memory>
#include <string>
#include <vector>

#include "apogee/chunk/gradient_chunks.h"
#include "apogee/chunk/sharded_parameters.h"
#include "apogee/plugins/chunk_homes.h"
#include "apogee/plugins/chunk_map.h"
#include "apogee/plugins/fused_shards.h"
#include "apogee/plugins/module_windows.h"
#include "apogee/plugins/plugin.h"
#include "apogee/plugins/shard_gradients.h"
#include "apogee/plugins/step_guard.h"

namespace apogee {

struct GeminiOptions {
  // Where chunks live, and what stays gathered.
  PlacementOptions placement = {};
  // "f32", "bf16" or "fp16" (fp32 masters and gradients; fp16 with a dynamic loss scale), "f64".
  std::string precision = "f32";
  // Clip the global L2 norm of the averaged gradients to this; 0: as the optimizer's step options
  // say.
  double max_norm = 0;
  // A module's parameters travel in chunks of about this size (of values); one parameter is never
  // split over chunks.
  int64_t chunk_bytes = 25 << 20;
  optim::LossScalerOptions loss_scaler = {};
  // As LowLevelZeroOptions::statistics_group: set when parameters have been cut before, and what is
  // sharded are the parts.
  comm::GroupPtr statistics_group = nullptr;
};

class GeminiPlugin : public Plugin {
 public:
  // `group`: the ranks to shard over; null for one rank. Throws Error listing every bad option.
  explicit GeminiPlugin(comm::GroupPtr group, const GeminiOptions& options = {});

  std::string name() const override { return "gemini"; }
  // What keeps Configure from running, thrown as Error; local, changes nothing.
  void Check(nn::Module& model, optim::Optimizer& optimizer) const;
  // Collective. Throws Error, before anything has changed, for an optimizer that does not support
  // shards or has been bound before, for a module whose forward was wrapped, on a second call, and,
  // on every rank, when the ranks' models or optimizers differ.
  optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer) override;
  // Collective.
  void Backward(const Tensor& loss, optim::Optimizer& optimizer) override;
  std::shared_ptr<void> NoSync() override { return guard_->NoSync(); }
  comm::GroupPtr group() const override { return group_; }
  comm::GroupPtr data_group() const override { return group_; }
  comm::Layout LayoutOf(const autograd::Parameter& parameter) const override;
  optim::LossScaler* loss_scaler() override { return guard_->loss_scaler(); }

  // The whole value of a parameter, of this rank's part if it has been cut before, a copy.
  // Collective.
  Tensor WholeValue(const autograd::Parameter& parameter) const;
  // 1 but for fp16.
  double loss_scale() const { return guard_->loss_scale(); }
  // After boost: the chunks that parameters lie in, and where they live.
  const chunk::ShardedParameters& chunks() const { return *parameters_; }
  const ChunkHomes& homes() const { return *homes_; }
  // What was whole on this rank's device when, in the last step.
  const ChunkMap& chunk_map() const { return *map_; }
  // Its picture, an XML document.
  std::string ChunkMapSvg(const std::string& title) const;

 private:
  void Choose(const nn::Module& model, optim::Optimizer& optimizer);
  std::vector<chunk::ChunkSpec> Plan(nn::Module& model, optim::Optimizer& optimizer) const;
  void Bind(size_t index, const Tensor& old_value, const Tensor& shard,
            const comm::Layout& layout) const;
  void TakeValue(autograd::Parameter& parameter) const;
  void ReduceGradients(const std::vector<chunk::ChunkSpec>& plan, optim::Optimizer& optimizer);
  void FusedBackward(const Tensor& loss);
  void MakeHomes(const std::vector<chunk::ChunkSpec>& plan, const ContextPtr& device);
  void LimitDevice(nn::Module& model);
  void Settle(const optim::Optimizer& optimizer);
  // Where a parameter is among the sharded ones; their number if it is not.
  size_t IndexOf(const autograd::Parameter& parameter) const;

  comm::GroupPtr group_;
  GeminiOptions options_;
  DType dtype_;
  std::vector<autograd::ParameterPtr> sharded_;  // in the order backward completes them
  std::vector<optim::ParamView*> views_;         // of sharded_; null: not the optimizer's
  std::vector<autograd::ParameterPtr> unheld_;   // trainable, and not the optimizer's
  std::unique_ptr<ShardGradients> shards_;
  std::unique_ptr<FusedShards> fused_;  // of an optimizer that updates inside backward
  std::unique_ptr<StepGuard> guard_;
  std::unique_ptr<ChunkHomes> homes_;
  std::shared_ptr<chunk::ShardedParameters> parameters_;
  std::unique_ptr<ChunkMap> map_;
  std::unique_ptr<ModuleWindows> windows_;
  std::unique_ptr<chunk::GradientChunks> gradients_;
  std::unique_ptr<chunk::GradientChunks> unheld_gradients_;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_GEMINI_H_
