// SPDX-License-Identifier: Apache-2.0

// GatheredEngine: every rank keeps shards of values, gradients and states, on the device, the host
// or a disk. A chunk of values is gathered while modules use it (plugins/gemini.h). Internal.
#ifndef APOGEE_PLUGINS_SHARDING_GATHERED_ENGINE_H_
#define APOGEE_PLUGINS_SHARDING_GATHERED_ENGINE_H_

#include <functional>
#include <memory>
#include <vector>

#include "apogee/chunk/sharded_parameters.h"
#include "apogee/optim/core/group_stat_reducer.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/gemini/chunk_homes.h"
#include "apogee/plugins/gemini/module_windows.h"
#include "apogee/plugins/sharding/engine.h"
#include "apogee/plugins/sharding/fused_shards.h"

namespace apogee {

class GatheredEngine : public ShardedEngine {
 public:
  GatheredEngine(comm::GroupPtr group, const TrainingOptions& training,
                 const GeminiOptions& options, const CutParameters& cut);
  void Check(nn::Module& model, optim::Optimizer& optimizer) const override;
  optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer) override;
  void Backward(const Tensor& loss) override;
  void RunPass(const std::function<void()>& backward, const chunk::GradientPass& pass) override;
  Layout LayoutOf(const autograd::Parameter& parameter) const override;
  Tensor WholeValue(const autograd::Parameter& parameter) const override;

  const GeminiOptions& options() const { return options_; }
  const chunk::ShardedParameters& parameters() const { return *parameters_; }
  const ChunkHomes& homes() const { return *homes_; }

 private:
  bool shards_frozen() const override { return true; }
  std::vector<chunk::ChunkSpec> Plan(nn::Module& model, const Share& share) const override;
  void PlaceValues(nn::Module& model,
                   const std::vector<std::vector<chunk::ChunkSpec>>& plans) override;
  chunk::GradientChunkOptions GradientOptions(optim::Optimizer& optimizer,
                                              const Share& share) override;
  void OnMean(size_t index, const Tensor& mean) override;
  void BeforeStep() override;
  void AfterStep() override;
  void BeforeWeightsReplaced() override;
  void WeightsReplaced() override;

  // `dtypes`: by chunk.
  void MakeHomes(const std::vector<chunk::ChunkSpec>& plan, const std::vector<DType>& dtypes,
                 const ContextPtr& device);
  void LimitDevice(nn::Module& model);
  void Settle();
  // Index of a parameter among the sharded ones; their number if it is not sharded.
  size_t IndexOf(const autograd::Parameter& parameter) const;

  const GeminiOptions options_;
  optim::GroupStatReducer expert_statistics_;
  std::unique_ptr<FusedShards> fused_;  // if the optimizer updates inside backward
  std::unique_ptr<ChunkHomes> homes_;
  std::shared_ptr<chunk::ShardedParameters> parameters_;
  std::shared_ptr<ModuleWindows> windows_;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_SHARDING_GATHERED_ENGINE_H_
