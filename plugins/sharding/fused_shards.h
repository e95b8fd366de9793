// SPDX-License-Identifier: Apache-2.0

// FusedShards: runs, on shards, the update of an optimizer that updates inside backward
// (optim/step/fused_step.h). Updates each chunk as soon as its mean gradients arrive.
//
//   FusedShards fused(optimizer, others);
//   GradientChunks chunks(parameters, plan, group, {.on_chunk = [&] { fused.OnChunk(); }},
//                         [&](size_t i, const Tensor& mean) { fused.OnMean(*views[i], mean); });
//   fused.Backward([&](FusedShards::Walk walk) { ... chunks.Run(...) ... });
//   optimizer.step();                                    // reports
//
// If the update needs one decision for all parameters (clipping, a check that all gradients are
// finite), backward walks twice over the same graph. The first walk only computes norms.
#ifndef APOGEE_PLUGINS_SHARDING_FUSED_SHARDS_H_
#define APOGEE_PLUGINS_SHARDING_FUSED_SHARDS_H_

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "apogee/optim/step/fused_step.h"

namespace apogee {

class FusedShards {
 public:
  // One walk of backward over the graph.
  struct Walk {
    bool retain_graph = false;  // another walk follows
    bool again = false;         // this is the second walk
  };

  // `others`: parameters of GradientChunks that the optimizer does not hold; a second walk leaves
  // their gradients as they are. `optimizer` must outlive this.
  FusedShards(optim::Optimizer& optimizer, std::vector<autograd::ParameterPtr> others);

  // Takes this rank's part of the mean of a gradient that is present.
  void OnMean(optim::ParamView& view, const Tensor& mean);
  // Call it after OnMean of all gradients of a chunk: updates them at once, with their statistics
  // in one message. `reducer`: as for FusedStep::Update. Collective.
  void OnChunk(optim::StatReducer* reducer = nullptr);
  // `backward` runs backward of the loss times the loss scale of the optimizer's step options, and
  // calls OnMean and OnChunk. Collective. If it throws, no gradient is left, and step() has nothing
  // to report.
  void Backward(const std::function<void(Walk)>& backward);

 private:
  optim::Optimizer& optimizer_;
  std::vector<autograd::ParameterPtr> others_;
  std::map<const optim::ParamView*, int> groups_;
  std::optional<optim::FusedStep> step_;    // of the current backward
  bool updates_ = false;                    // whether this walk updates
  std::vector<optim::ActiveParam> params_;  // of the current chunk
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_SHARDING_FUSED_SHARDS_H_
