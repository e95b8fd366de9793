// SPDX-License-Identifier: Apache-2.0

// BackwardPasses: a data-parallel plugin as a pipeline drives it: several backward passes for one
// gradient, of which the last that a parameter takes part in reduces its sum over the group.
//
//   const bool reduce = passes.BeginBackward();
//   passes.RunPass([&] { ... autograd::Backward ... }, {.reduce = false});
//   passes.RunPass([&] { ... autograd::Backward ... }, {.reduce = reduce});
#ifndef APOGEE_PLUGINS_BACKWARD_PASSES_H_
#define APOGEE_PLUGINS_BACKWARD_PASSES_H_

#include <functional>

#include "apogee/chunk/gradient_chunks.h"

namespace apogee {

class BackwardPasses {
 public:
  virtual ~BackwardPasses() = default;
  // Before the passes that stand for one Plugin::Backward. Returns whether they are to reduce, no
  // handle of NoSync being alive.
  virtual bool BeginBackward() = 0;
  // Collective over the data-parallel group where the pass reduces.
  virtual void RunPass(const std::function<void()>& backward, const chunk::GradientPass& pass) = 0;
  // Each pass should reduce what it can, because sums are kept on shards.
  virtual bool ReducesEachPass() const { return false; }
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_BACKWARD_PASSES_H_
