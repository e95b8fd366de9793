// SPDX-License-Identifier: Apache-2.0

// Activation checkpointing: forward keeps only a function's input; backward runs it again.
//
//   Tensor y = autograd::Recompute([&](const Tensor& x) { return block(x); }, x, &generator);
//
// Gradients and parameter hooks are those of the plain call: the graph is the same, only its saved
// tensors are made again (Chen et al., "Training deep nets with sublinear memory cost", 2016).
#ifndef APOGEE_AUTOGRAD_RECOMPUTE_H_
#define APOGEE_AUTOGRAD_RECOMPUTE_H_

#include <functional>

#include "apogee/core/rng.h"
#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// `fn` must be a pure function of its input, of parameters, and of `generator`, whose state is
// replayed. fn and generator must live until backward has run. Throws Error in backward when the
// second run saves other tensors than the first.
Tensor Recompute(std::function<Tensor(const Tensor&)> fn, const Tensor& input,
                 Generator* generator = nullptr);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_RECOMPUTE_H_
