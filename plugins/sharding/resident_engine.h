// SPDX-License-Identifier: Apache-2.0

// ResidentEngine: every rank keeps whole values, in chunks; states, and at stage 2 gradients, are
// sharded. After a step the shards of the values are gathered (plugins/low_level_zero.h). Internal.
#ifndef APOGEE_PLUGINS_SHARDING_RESIDENT_ENGINE_H_
#define APOGEE_PLUGINS_SHARDING_RESIDENT_ENGINE_H_

#include <memory>
#include <optional>
#include <vector>

#include "apogee/chunk/parameter_chunks.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/sharding/engine.h"

namespace apogee {

class ResidentEngine : public ShardedEngine {
 public:
  ResidentEngine(comm::GroupPtr group, const TrainingOptions& training,
                 const LowLevelZeroOptions& options, const CutParameters& cut);
  void Check(nn::Module& model, optim::Optimizer& optimizer) const override;
  bool ReducesEachPass() const override { return options_.stage == 2; }

  // Those that all ranks have.
  const chunk::ParameterChunks& parameters() const { return *parameters_.at(0); }
  const ContextPtr& state_context() const { return state_context_; }

 private:
  void CheckRoom(const PrecisionPolicy& policy, optim::Optimizer& optimizer) const;
  bool shards_frozen() const override { return false; }
  std::vector<chunk::ChunkSpec> Plan(nn::Module& model, const Share& share) const override;
  void PlaceValues(nn::Module& model,
                   const std::vector<std::vector<chunk::ChunkSpec>>& plans) override;
  void PlaceValues(const Share& share, const std::vector<chunk::ChunkSpec>& plan);
  chunk::GradientChunkOptions GradientOptions(optim::Optimizer& optimizer,
                                              const Share& share) override;
  void BeforeStep() override;
  void AfterStep() override;
  void BeforeWeightsReplaced() override;
  void WeightsReplaced() override { Loaded(); }
  // A state dict with masters holds weights, and this rank took only its shard of them.
  void Loaded() override {
    for (const auto& chunks : parameters_) chunks->GatherAsync();
  }

  const LowLevelZeroOptions options_;
  std::optional<DType> communication_dtype_;
  ContextPtr state_context_;
  std::vector<std::unique_ptr<chunk::ParameterChunks>> parameters_;  // by share
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_SHARDING_RESIDENT_ENGINE_H_
