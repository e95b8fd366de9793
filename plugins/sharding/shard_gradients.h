// SPDX-License-Identifier: Apache-2.0

// ShardGradients: the gradients of parameters whose optimizer works on shards. The optimizer's
// views hold these gradients; the parameters have none of their own. Used by the plugins that
// shard.
//
//   ShardGradients shards("gemini", optimizer, parameters, views, frozen);
//   GradientChunks chunks(..., [&](size_t i, const Tensor& mean) { shards.OnMean(i, mean); });
//   shards.CheckFrozen();
//   shards.Backward(chunks, [&] { chunks.Run(backward, pass); });
//   shards.CheckNoneFromElsewhere();                                  // before a step
//
// While this object lives, zero_grad through a parameter clears the view's gradient. Other uses of
// a parameter's gradient, such as clipping, throw Error with the remedy.
#ifndef APOGEE_PLUGINS_ZERO_SHARD_GRADIENTS_H_
#define APOGEE_PLUGINS_ZERO_SHARD_GRADIENTS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apogee/chunk/gradient_chunks.h"
#include "apogee/optim/optimizer.h"

namespace apogee {

class ShardGradients {
 public:
  // `views`: the optimizer's, one per parameter; null if it does not hold the parameter. `frozen`:
  // parameters that were frozen at boost, so no shards exist to train them.
  ShardGradients(std::string plugin, const optim::Optimizer& optimizer,
                 std::vector<autograd::ParameterPtr> parameters,
                 std::vector<optim::ParamView*> views, std::vector<autograd::ParameterPtr> frozen);
  ShardGradients(const ShardGradients&) = delete;
  ShardGradients& operator=(const ShardGradients&) = delete;

  // Adds this rank's part of the mean of a micro-batch's gradient to the view's gradient.
  void OnMean(size_t index, const Tensor& mean);
  // Throws Error if a frozen parameter has been unfrozen. Call it before a backward.
  void CheckFrozen() const;
  // Runs `backward`, in which `gradients` calls OnMean.
  void Backward(const chunk::GradientChunks& gradients, const std::function<void()>& backward);
  // Throws Error if a parameter has been given a gradient of its own, which no step would see.
  void CheckNoneFromElsewhere() const;

 private:
  std::string plugin_;
  std::vector<autograd::ParameterPtr> parameters_;
  std::vector<optim::ParamView*> views_;
  std::vector<autograd::ParameterPtr> frozen_;
  std::vector<std::shared_ptr<const autograd::GradPlace>> places_;  // of the views' gradients
  std::vector<Tensor> means_;  // new gradients, until their presence is known
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_ZERO_SHARD_GRADIENTS_H_
