// SPDX-License-Identifier: Apache-2.0

// FusedShards: the update of an optimizer that updates inside backward (optim/fused_step.h), on
// shards, chunk by chunk as their mean gradients come.
//
//   FusedShards fused(optimizer, views, others);
//   GradientChunks chunks(..., {.on_chunk = [&] { fused.OnChunk(); }},
//                         [&](size_t i, const Tensor& mean) { fused.OnMean(i, mean); });
//   fused.Backward(loss_scale, [&](FusedShards::Walk walk) { ... chunks.Backward(...) ... });
//   optimizer.step();                                    // reports
//
// Where one decision for all parameters is needed, backward walks twice over the same graph; the
// first walk only takes norms.
#ifndef APOGEE_PLUGINS_FUSED_SHARDS_H_
#define APOGEE_PLUGINS_FUSED_SHARDS_H_

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "apogee/optim/fused_step.h"

namespace apogee {

class FusedShards {
 public:
  // One walk of backward over the graph.
  struct Walk {
    bool retain_graph = false;  // another one follows
    bool again = false;         // the second one
  };

  // `views`: of the parameters that GradientChunks has; null: not the optimizer's. `others`: more
  // that backward gives gradients to, once per Backward. `optimizer` must outlive this.
  FusedShards(optim::Optimizer& optimizer, std::vector<optim::ParamView*> views,
              std::vector<autograd::ParameterPtr> others);

  // This rank's part of the mean of a gradient that is present.
  void OnMean(size_t index, const Tensor& mean);
  // Runs after those of a chunk: one update, whose statistics are packed. Collective.
  void OnChunk();
  // `backward` is that of the loss times `loss_scale`, in which those are called. Collective. When
  // it throws, no gradient is left, and step() has nothing to report.
  void Backward(double loss_scale, const std::function<void(Walk)>& backward);

 private:
  optim::Optimizer& optimizer_;
  std::vector<optim::ParamView*> views_;
  std::vector<autograd::ParameterPtr> others_;
  std::map<const optim::ParamView*, int> groups_;
  std::optional<optim::FusedStep> step_;    // of the backward under way
  bool updates_ = false;                    // this walk does
  std::vector<optim::ActiveParam> params_;  // of the chunk under way
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_FUSED_SHARDS_H_
