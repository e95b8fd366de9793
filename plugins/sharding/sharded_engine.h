// SPDX-License-Identifier: Apache-2.0

// ShardedEngine: the part that the engines of stages 1 to 3 share. The optimizer works on shards:
// its views are bound to them, and gradients reach them as means.
//
// The views hold the gradients; the parameters have none of their own. While the engine lives,
// zero_grad through a parameter clears the view's gradient. Other uses of a parameter's gradient,
// such as clipping, throw Error with the remedy. Internal.
#ifndef APOGEE_PLUGINS_SHARDING_SHARDED_ENGINE_H_
#define APOGEE_PLUGINS_SHARDING_SHARDED_ENGINE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apogee/chunk/gradient_chunks.h"
#include "apogee/plugins/sharding/engine.h"

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
  // The chunks of sharded_. `cut_multiples`: of each (ParamTraits::cut_multiple).
  virtual std::vector<chunk::ChunkSpec> Plan(nn::Module& model,
                                             const std::vector<int64_t>& cut_multiples) const = 0;
  // Moves the values of sharded_ into chunks, and calls Bind for each.
  virtual void PlaceValues(nn::Module& model, const std::vector<chunk::ChunkSpec>& plan) = 0;
  virtual chunk::GradientChunkOptions GradientOptions(optim::Optimizer& optimizer) = 0;

  // Takes this rank's part of the mean of a micro-batch's gradient. Here: adds it to the view's.
  virtual void OnMean(size_t index, const Tensor& mean);
  // Throws Error, too, if a parameter was given a gradient of its own, which no step would see.
  void BeforeStep() override;

  // Binds the view of a parameter to its shard. The masters are made from the value before it is
  // rounded to the working dtype, because they keep the bits that rounding drops.
  void Bind(size_t index, const Tensor& old_value, const Tensor& shard, const Layout& layout) const;
  // Runs `backward`, in which gradients become means on shards.
  void Reduce(const std::function<void()>& backward, const chunk::GradientPass& pass);
  // Runs `backward`, which calls Reduce. Then views have the gradients that some rank has.
  void TakeMeans(const std::function<void()>& backward);
  std::vector<autograd::ParameterPtr> Parameters() const;

  struct Sharded {
    autograd::ParameterPtr parameter;
    optim::ParamView* view;                                           // null: not in the optimizer
    std::shared_ptr<const autograd::GradPlace> grad_place = nullptr;  // the view
    Tensor mean = {};  // a new gradient, until its presence is known
  };
  std::vector<Sharded> sharded_;                // in the order backward completes them
  std::vector<autograd::ParameterPtr> unheld_;  // not in the optimizer, and not sharded
  std::unique_ptr<chunk::GradientChunks> gradients_;
  std::unique_ptr<chunk::GradientChunks> unheld_gradients_;
  bool keep_masters_ = true;

 private:
  // Decides the fate of each parameter.
  void Choose(const nn::Module& model, optim::Optimizer& optimizer);
  void PlaceGradients();
  std::vector<int64_t> CutMultiples(const optim::Optimizer& optimizer) const;

  std::vector<autograd::ParameterPtr> frozen_;  // at boost, so no shards exist to train them
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_SHARDING_SHARDED_ENGINE_H_
