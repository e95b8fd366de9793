// SPDX-License-Identifier: Apache-2.0

// BackwardPasses: how a pipeline drives a data-parallel plugin. Several backward passes make one
// gradient. The last pass that a parameter takes part in reduces its sum over the group.
//
//   const bool reduce = passes.BeginBackward();
//   passes.RunPass([&] { ... autograd::Backward ... }, {.reduce = false});
//   passes.RunPass([&] { ... autograd::Backward ... }, {.reduce = reduce});
#ifndef APOGEE_PLUGINS_SHARDING_BACKWARD_PASSES_H_
#define APOGEE_PLUGINS_SHARDING_BACKWARD_PASSES_H_

#include <functional>

#include "apogee/chunk/gradient_chunks.h"

namespace apogee {

class BackwardPasses {
 public:
  virtual ~BackwardPasses() = default;
  // Call it before the passes that replace one Plugin::Backward. Returns whether they reduce
  // gradients: false while a handle of NoSync lives.
  virtual bool BeginBackward() = 0;
  // Collective over the data-parallel group if the pass reduces.
  virtual void RunPass(const std::function<void()>& backward, const chunk::GradientPass& pass) = 0;
  // True if each pass should reduce the gradients it completes, because sums are kept on shards.
  virtual bool ReducesEachPass() const { return false; }
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_SHARDING_BACKWARD_PASSES_H_
