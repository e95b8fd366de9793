// SPDX-License-Identifier: Apache-2.0

// Activation checkpointing: forward keeps only a function's input; backward runs it again.
//
//   Tensor y = autograd::Recompute([&](const Tensor& x) { return block(x); }, x, &generator);
//
// Gradients and parameter hooks are those of a plain call: the graph is the same, only its saved
// tensors are computed again (Chen et al., "Training deep nets with sublinear memory cost", 2016).
#ifndef APOGEE_AUTOGRAD_RECOMPUTE_H_
#define APOGEE_AUTOGRAD_RECOMPUTE_H_

#include <functional>

#include "apogee/core/rng.h"
#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// `fn` must be a pure function of its input, of parameters, of `generator` and of the current
// documents (autograd/documents.h): the second run starts with the generator's state of the first,
// and has its documents. `generator` and everything that fn refers to must
// live until backward has run. Backward throws Error if the second run saves another number of
// tensors, or other shapes, than the first.
Tensor Recompute(std::function<Tensor(const Tensor&)> fn, const Tensor& input,
                 Generator* generator = nullptr);

// Whether the calling thread is in the second run of such a function, which must not change state
// that the first run has changed.
bool IsRecomputing();

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_RECOMPUTE_H_
