// SPDX-License-Identifier: Apache-2.0

// ShardedEngine: the part that the engines of stages 1 to 3 share. The optimizer works on shards:
// its views are bound to them, and gradients reach them as means. Internal.
#ifndef APOGEE_PLUGINS_SHARDING_SHARDED_ENGINE_H_
#define APOGEE_PLUGINS_SHARDING_SHARDED_ENGINE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apogee/chunk/gradient_chunks.h"
#include "apogee/plugins/sharding/engine.h"
#include "apogee/plugins/sharding/shard_gradients.h"

namespace apogee {

class ShardedEngine : public DataParallelEngine {
 public:
  void Check(nn::Module& model, optim::Optimizer& optimizer) const override;
  optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer) override;
  bool BeginBackward() override;
  void RunPass(const std::function<void()>& backward, const chunk::GradientPass& pass) override;

 protected:
  using DataParallelEngine::DataParallelEngine;

  // The policy, called by Configure in this order:
  // Makes the ranks' models equal, except values that PlaceValues makes equal.
  virtual void MakeEqual(nn::Module& model, optim::Optimizer& optimizer) = 0;
  // Whether frozen parameters are sharded, too. If so, PlaceValues makes the values of unheld_
  // equal and converts them.
  virtual bool shards_frozen() const = 0;
  // The chunks of sharded_. `cut_multiples`: of each (Optimizer::CutMultiple).
  virtual std::vector<chunk::ChunkSpec> Plan(nn::Module& model,
                                             const std::vector<int64_t>& cut_multiples) const = 0;
  // Moves the values of sharded_ into chunks, and calls Bind for each.
  virtual void PlaceValues(nn::Module& model, const std::vector<chunk::ChunkSpec>& plan) = 0;
  virtual chunk::GradientChunkOptions GradientOptions(optim::Optimizer& optimizer) = 0;

  // Takes this rank's part of the mean of a gradient.
  virtual void OnMean(size_t index, const Tensor& mean) { shards_->OnMean(index, mean); }
  void BeforeStep(optim::Optimizer& optimizer) override;

  // Binds the view of a parameter to its shard. The masters are made from the value before it is
  // rounded to the working dtype, because they keep the bits that rounding drops.
  void Bind(size_t index, const Tensor& old_value, const Tensor& shard, const Layout& layout) const;
  // Runs `backward`, in which gradients become means on shards.
  void Reduce(const std::function<void()>& backward, const chunk::GradientPass& pass);

  std::vector<autograd::ParameterPtr> sharded_;  // in the order backward completes them
  std::vector<optim::ParamView*> views_;         // of sharded_; null: not in the optimizer
  std::vector<autograd::ParameterPtr> unheld_;   // not in the optimizer, and not sharded
  std::unique_ptr<chunk::GradientChunks> gradients_;
  std::unique_ptr<chunk::GradientChunks> unheld_gradients_;
  std::unique_ptr<ShardGradients> shards_;
  bool keep_masters_ = true;

 private:
  // Returns the frozen parameters that no shard can train.
  std::vector<autograd::ParameterPtr> Choose(const nn::Module& model, optim::Optimizer& optimizer);
  std::vector<int64_t> CutMultiples(const optim::Optimizer& optimizer) const;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_SHARDING_SHARDED_ENGINE_H_
