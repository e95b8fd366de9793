// SPDX-License-Identifier: Apache-2.0

// GeminiPlugin::State: the members of GeminiPlugin (plugins/gemini.h). Internal.
#ifndef APOGEE_PLUGINS_GEMINI_GEMINI_STATE_H_
#define APOGEE_PLUGINS_GEMINI_GEMINI_STATE_H_

#include <memory>
#include <vector>

#include "apogee/chunk/gradient_chunks.h"
#include "apogee/chunk/sharded_parameters.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/gemini/chunk_homes.h"
#include "apogee/plugins/gemini/chunk_record.h"
#include "apogee/plugins/gemini/module_windows.h"
#include "apogee/plugins/hybrid/cut_parameters.h"
#include "apogee/plugins/step_guard.h"
#include "apogee/plugins/zero/fused_shards.h"
#include "apogee/plugins/zero/shard_gradients.h"

namespace apogee {

struct GeminiPlugin::State {
  State(comm::GroupPtr group, const TrainingOptions& training, const GeminiOptions& options,
        const CutParameters& cut);

  void Check(nn::Module& model, optim::Optimizer& optimizer) const;
  optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer);
  void Backward(const Tensor& loss);
  Layout LayoutOf(const autograd::Parameter& parameter) const;
  Tensor WholeValue(const autograd::Parameter& parameter) const;
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
  std::shared_ptr<ModuleWindows> windows_;
  std::unique_ptr<chunk::GradientChunks> gradients_;
  std::unique_ptr<chunk::GradientChunks> unheld_gradients_;
  std::vector<Subscription> hooks_;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_GEMINI_GEMINI_STATE_H_
