// SPDX-License-Identifier: Apache-2.0

// Losses.
//
//   // logits [B, T, V], targets i64 [B, T]
//   Tensor loss = autograd::CrossEntropy(logits, targets);
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_LOSS_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_LOSS_H_

#include <optional>

#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// Mean of -log softmax(logits)[target] over the targets that are not `ignore_index`, a scalar of
// f32 (f64 for f64 logits), in nats; NaN when every target is ignored. Fused with softmax. Backward
// writes the gradient over the logits where nothing else owns them. Throws Error for a target
// outside [0, V).
Tensor CrossEntropy(const Tensor& logits, const Tensor& targets, int64_t ignore_index = -100);

// How many targets the cross entropies count that `loss` is made of, where they are within its last
// few functions (a scaled loss, a sum of losses); none where none is found.
std::optional<int64_t> NumTargetsOf(const Tensor& loss);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_LOSS_H_
