// SPDX-License-Identifier: Apache-2.0

// ShardGradients: the gradients of parameters whose optimizer works on shards: they lie on the
// optimizer's views, and the parameters have none of their own. What plugins that shard share.
//
//   ShardGradients shards("gemini", optimizer, parameters, views, frozen);
//   GradientChunks chunks(..., [&](size_t i, const Tensor& mean) { shards.OnMean(i, mean); });
//   shards.Backward(chunks, [&] { chunks.Backward(loss, scale, reduce); });
//   shards.CheckNoneFromElsewhere();                                  // before a step
//
// As long as it lives zero_grad and clipping through the parameters reach the views, or say why
// they cannot.
#ifndef APOGEE_PLUGINS_SHARD_GRADIENTS_H_
#define APOGEE_PLUGINS_SHARD_GRADIENTS_H_

#include <functional>
#include <string>
#include <vector>

#include "apogee/chunk/gradient_chunks.h"
#include "apogee/optim/optimizer.h"

namespace apogee {

class ShardGradients {
 public:
  // `views` of the optimizer, one per parameter; null: it does not hold that one. `frozen`:
  // parameters that have nothing on shards to train them with.
  ShardGradients(std::string plugin, const optim::Optimizer& optimizer,
                 std::vector<autograd::ParameterPtr> parameters,
                 std::vector<optim::ParamView*> views, std::vector<autograd::ParameterPtr> frozen);
  ~ShardGradients();
  ShardGradients(const ShardGradients&) = delete;
  ShardGradients& operator=(const ShardGradients&) = delete;

  // This rank's part of the mean of a micro-batch's gradient: added to what the view has.
  void OnMean(size_t index, const Tensor& mean);
  // Around `backward`, in which `gradients` calls OnMean. Throws Error for a frozen parameter that
  // has been thawed.
  void Backward(const chunk::GradientChunks& gradients, const std::function<void()>& backward);
  // Throws Error for a parameter that was given a gradient, which no step would see.
  void CheckNoneFromElsewhere() const;

 private:
  std::string plugin_;
  std::vector<autograd::ParameterPtr> parameters_;
  std::vector<optim::ParamView*> views_;
  std::vector<autograd::ParameterPtr> frozen_;
  std::vector<Tensor> means_;  // new gradients, until their presence is known
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_SHARD_GRADIENTS_H_
