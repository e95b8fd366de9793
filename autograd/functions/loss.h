// SPDX-License-Identifier: Apache-2.0

// Losses.
//
//   // logits [B, T, V], targets i64 [B, T] -> a scalar
//   Tensor loss = autograd::CrossEntropy(logits, targets);
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_LOSS_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_LOSS_H_

#include <optional>

#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// The mean of -log softmax(logits)[target] over the targets that are not `ignore_index`: a scalar
// of f32 (f64 for f64 logits), in nats. NaN if every target is ignored. Fused with softmax.
// Backward overwrites the logits with their gradient if nothing else owns them. Throws Error for a
// target outside [0, V). Targets on a GPU are fetched to be checked, which waits for them. Takes
// deferred logits (HeadLoss of nn), too.
//
// With label smoothing in [0, 1], a target stands for probabilities: label_smoothing / V for every
// class, and the rest for the target (Szegedy et al. 2016, https://arxiv.org/abs/1512.00567).
Tensor CrossEntropy(const Tensor& logits, const Tensor& targets, int64_t ignore_index = -100,
                    double label_smoothing = 0);

// The logits themselves, computed if a model in training has deferred them.
Tensor WholeLogits(const Tensor& logits);

// The number of targets in the cross entropies that `loss` was computed from, found by walking back
// a few dozen nodes (enough for a scaled loss or a sum of losses). nullopt if there is none.
std::optional<int64_t> NumTargetsOf(const Tensor& loss);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_LOSS_H_
