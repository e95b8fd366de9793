// SPDX-License-Identifier: Apache-2.0

// GeminiPlugin: data parallelism with parameters, gradients and optimizer states sharded over the
// ranks (ZeRO stage 3; Rajbhandari et al., SC 2020). A module's parameters are whole on a rank only
// while the module runs.
//
//   comm::launch({.num_ranks = 4}, [&](comm::World& world) {
//     model.InitializeLazily(world.context(), {.seed = 1});  // no memory yet
//     GeminiPlugin plugin(world.group(), {.precision = Precision::kBf16, .max_norm = 1.0});
//     Booster booster(plugin);
//     auto boosted = booster.boost(model, optimizer);       // any optimizer of the registry
//     ... the ordinary loop ...
//   });
//
// The update equals that of one rank with the whole batch. Optimizers are bound to shards as in
// LowLevelZeroPlugin.
//
// Parameters are stored in chunks, each parameter in one. Each module has ceil(bytes /
// bucket_bytes) chunks, separate ones for trainable and frozen parameters. One all-gather per chunk
// brings its values before the module's forward and before the module's part of backward; the
// gathered values are freed afterwards. plugins/gemini/module_windows.h has the rules for modules,
// and for ranks whose forwards differ.
//
// Bytes per rank, for n ranks and N elements:
//
//   (N b + N g + N s) / n, and the whole chunks of the modules that are running
//
//   b  bytes of a parameter's element
//   g  bytes of a gradient's element: 4 for bf16 and fp16, else b
//   s  bytes of the states of an element, with masters (4 for bf16 and fp16)
//
// A chunk is padded to a multiple of 8 elements per rank, and further so that no two chunks have
// the same size.
//
// boost receives rank 0's values, parameter by parameter and in one order on all ranks, keeps this
// rank's part and frees the rest. After nn::Module::InitializeLazily no rank ever holds more than
// its shards, the masters made from f32 values, and one whole parameter. So you can build a model
// larger than a rank's memory. Values and masters are those of Initialize, bit for bit. Only rank 0
// computes lazy values; the others receive them. (Initialize makes the model whole on every rank
// first.)
//
// Between uses Parameter::data() is this rank's part, of shape [n] (LayoutOf), and
// Parameter::value() throws Error. Under no_sync gradients stay local, whole on every rank, and add
// up; results are exact. A trainable parameter that the optimizer does not hold stays whole, so
// another optimizer may step on it.
//
// LOMO and AdaLomo update inside backward. Before each gather all ranks reduce, update and free the
// chunks whose gradients every rank has. This costs one more small collective per gather. The
// remaining chunks follow at the end of backward. Where every rank uses every parameter, gradients
// then do not take N g / n bytes: they take one parameter and the chunks that are completed between
// two gathers, usually one module's. With max_norm, with fp16, or with a NonFinitePolicy other than
// kProceed, backward walks over the graph twice, first for the norm, and gathers twice as often.
//
// plugins/gemini/chunk_homes.h says where chunks live (device, host, disk). For tensor parallelism
// use HybridParallelOptions::stage = 3. Not supported yet: sums in another dtype
// (communication_dtype) and runs without masters (master_weights = false).
#ifndef APOGEE_PLUGINS_GEMINI_H_
#define APOGEE_PLUGINS_GEMINI_H_

#include <memory>
#include <string>
#include <vector>

#include "apogee/chunk/gradient_chunks.h"
#include "apogee/chunk/sharded_parameters.h"
#include "apogee/plugins/gemini/chunk_homes.h"
#include "apogee/plugins/gemini/chunk_record.h"
#include "apogee/plugins/gemini/module_windows.h"
#include "apogee/plugins/gemini/placement.h"
#include "apogee/plugins/hybrid/cut_parameters.h"
#include "apogee/plugins/plugin.h"
#include "apogee/plugins/step_guard.h"
#include "apogee/plugins/training_options.h"
#include "apogee/plugins/zero/fused_shards.h"
#include "apogee/plugins/zero/shard_gradients.h"

namespace apogee {

struct GeminiOptions {
  // Where chunks live, and which values stay gathered.
  PlacementOptions placement = {};
};

class GeminiPlugin : public Plugin {
 public:
  // `group`: the ranks to shard over; null for one rank. Throws Error listing every bad option;
  // training.overlap must be true.
  explicit GeminiPlugin(comm::GroupPtr group, const TrainingOptions& training = {},
                        const GeminiOptions& options = {});
  // Internal: for a plugin that has cut the parameters. Keys of buckets are not used.
  GeminiPlugin(comm::GroupPtr group, const TrainingOptions& training, const GeminiOptions& options,
               const CutParameters& cut);

  std::string name() const override { return "gemini"; }
  // Throws the Error that Configure would throw, as far as this rank can tell. Changes nothing.
  void Check(nn::Module& model, optim::Optimizer& optimizer) const;
  // Collective. Throws Error, before anything has changed, on a second call, for an optimizer that
  // does not support shards or has been bound before, and for a module whose forward was wrapped.
  // Throws Error on every rank when the ranks' models or optimizers differ.
  optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer) override;
  // Collective.
  void Backward(const Tensor& loss, optim::Optimizer& optimizer) override;
  std::shared_ptr<void> NoSync() override { return guard_->NoSync(); }
  comm::GroupPtr group() const override { return group_; }
  comm::GroupPtr data_group() const override { return group_; }
  Layout LayoutOf(const autograd::Parameter& parameter) const override;
  optim::LossScaler* loss_scaler() override { return guard_->loss_scaler(); }

  // Returns a copy of the whole value of a parameter, or of this rank's part if another plugin has
  // cut the parameter. Collective.
  Tensor WholeValue(const autograd::Parameter& parameter) const override;
  // 1 except for fp16.
  double loss_scale() const { return guard_->loss_scale(); }
  // After boost: the chunks that hold the parameters, and their homes (device, host, disk).
  const chunk::ShardedParameters& chunks() const { return *parameters_; }
  const ChunkHomes& homes() const { return *homes_; }
  // When each chunk was whole on this rank's device in the last step.
  const ChunkRecord& chunk_record() const { return *record_; }
  const TrainingOptions& training_options() const { return training_; }
  const GeminiOptions& options() const { return options_; }

 private:
  void Choose(const nn::Module& model, optim::Optimizer& optimizer);
  std::vector<chunk::ChunkSpec> Plan(nn::Module& model, optim::Optimizer& optimizer) const;
  void Bind(size_t index, const Tensor& old_value, const Tensor& shard, const Layout& layout) const;
  void TakeValue(autograd::Parameter& parameter) const;
  void ReduceGradients(const std::vector<chunk::ChunkSpec>& plan, optim::Optimizer& optimizer);
  void FusedBackward(const Tensor& loss);
  void MakeHomes(const std::vector<chunk::ChunkSpec>& plan, const ContextPtr& device);
  void LimitDevice(nn::Module& model);
  void Settle(const optim::Optimizer& optimizer);
  // Index of a parameter among the sharded ones; their number if it is not sharded.
  size_t IndexOf(const autograd::Parameter& parameter) const;

  comm::GroupPtr group_;
  TrainingOptions training_;
  GeminiOptions options_;
  CutParameters cut_;
  DType dtype_;
  std::vector<autograd::ParameterPtr> sharded_;  // in the order backward completes them
  std::vector<optim::ParamView*> views_;         // of sharded_; null: not in the optimizer
  std::vector<autograd::ParameterPtr> unheld_;   // trainable, not in the optimizer
  std::unique_ptr<ShardGradients> shards_;
  std::unique_ptr<FusedShards> fused_;  // if the optimizer updates inside backward
  std::unique_ptr<StepGuard> guard_;
  std::unique_ptr<ChunkHomes> homes_;
  std::shared_ptr<chunk::ShardedParameters> parameters_;
  std::unique_ptr<ChunkRecord> record_;
  std::unique_ptr<ModuleWindows> windows_;
  std::unique_ptr<chunk::GradientChunks> gradients_;
  std::unique_ptr<chunk::GradientChunks> unheld_gradients_;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_GEMINI_H_
