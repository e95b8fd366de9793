// SPDX-License-Identifier: Apache-2.0

// Logits that are not computed: a tensor of their shape that stands for the head's product, and a
// cross entropy that computes product and loss together, in pieces of tokens.
//
//   DeferredProduct product{.whole = ..., .cross_entropy = ...};
//   Tensor logits = DeferLogits(hidden, {2, 8, 50257}, product, "these logits ...");
//   Tensor loss = autograd::CrossEntropy(logits, targets);   // calls product.cross_entropy
//   Tensor all = autograd::WholeLogits(logits);   // loss.h; calls product.whole
//
// Everything else that reads the elements throws Error with the given text (Tensor::Sealed). Shape,
// dtype and context can be asked for.
#ifndef APOGEE_AUTOGRAD_HEAD_DEFERRED_LOGITS_H_
#define APOGEE_AUTOGRAD_HEAD_DEFERRED_LOGITS_H_

#include <functional>
#include <string>

#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// How the logits' owner computes with `hidden`, the tensor that DeferLogits was given.
struct DeferredProduct {
  std::function<Tensor(const Tensor& hidden)> whole;  // the logits
  // As autograd::CrossEntropy of the logits.
  std::function<Tensor(const Tensor& hidden, const Tensor& targets, int64_t ignore_index,
                       double label_smoothing)>
      cross_entropy;
};

// `shape`: of the logits. `why`: says what to do instead of reading them. The gradient passes
// through a node of the result, so hooks on it run as if it were the logits.
Tensor DeferLogits(const Tensor& hidden, const Shape& shape, const DeferredProduct& product,
                   const std::string& why);
// Whether the tensor is a result of DeferLogits itself, not a view of one.
bool IsDeferred(const Tensor& logits);
// The cross entropy of deferred logits.
Tensor DeferredCrossEntropy(const Tensor& logits, const Tensor& targets, int64_t ignore_index,
                            double label_smoothing);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_HEAD_DEFERRED_LOGITS_H_
