// SPDX-License-Identifier: Apache-2.0

// The product of a language model's head and its cross entropy, over pieces of tokens, so that the
// logits of one piece exist at a time.
//
//   // x [B, T, d], weight [V, d], targets i64 [B, T]
//   Tensor loss = autograd::HeadCrossEntropy(x, weight, targets, {.num_pieces = 8});
//
// The same as CrossEntropy(Linear(x, weight, {}), targets). Forward computes each piece's part of
// the gradients at once, while its logits exist, so nothing is computed twice; backward multiplies
// them by the gradient of the loss. From forward on the graph keeps the gradients of x and weight
// (f32, of f64 f64), in place of the logits.
//
// Rounding: the loss is summed over all tokens in their order, as without pieces. The
// weight's gradient adds the pieces in their order, in f32 (f64), and is rounded once; that differs
// from one long sum by its rounding. A gradient of the loss that is not a power of two is
// multiplied after the products instead of before them. In f16 the gradients are computed a power
// of two larger, about 2^12 times the number of targets, so that small ones do not vanish before
// the loss scale arrives.
#ifndef APOGEE_AUTOGRAD_HEAD_HEAD_LOSS_H_
#define APOGEE_AUTOGRAD_HEAD_HEAD_LOSS_H_

#include <functional>
#include <optional>

#include "apogee/autograd/functions/linear.h"
#include "apogee/tensor/ops/nn.h"
#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// The columns of the vocabulary that this rank's weight has, and how the ranks that have the others
// share statistics: two all-reduces of a piece's rows each. Each reduces in place.
struct VocabSplit {
  ops::VocabPart part;
  std::function<void(const Tensor&statistic)> maximum, sum;
};

struct HeadLossOptions {
  int64_t num_pieces = 1;  // pieces have equally many tokens, the last one perhaps fewer
  WeightLayout layout = WeightLayout::kOutIn;
  std::optional<double> soft_cap = {};  // of the logits (SoftCap)
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  const VocabSplit* split = nullptr;  // null: the weight has the whole vocabulary
  // The dtype of x's gradient; default: GradDType(x).
  std::optional<DType> input_grad_dtype = {};
};

// Throws Error as Linear and CrossEntropy do, and for num_pieces below 1. With more pieces than
// tokens a piece is one token. Reads the targets on the host. Backward can be split into an input
// and a weight half (GradPart).
Tensor HeadCrossEntropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                        const HeadLossOptions& options);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_HEAD_HEAD_LOSS_H_
