// SPDX-License-Identifier: Apache-2.0

// The kinds of operations that share a function and a kernel.
//
//   Tensor sum = ops::Binary(BinaryOp::kAdd, a, b);
//   Tensor y = autograd::Activate(Activation::kGelu, x);
#ifndef APOGEE_TENSOR_OPS_KINDS_H_
#define APOGEE_TENSOR_OPS_KINDS_H_

namespace apogee {

enum class BinaryOp { kAdd, kSub, kMul, kDiv };

// kGelu      0.5 x (1 + erf(x / sqrt(2)))
// kGeluTanh  0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as in GPT-2
// kSilu      x * sigmoid(x)
enum class Activation { kRelu, kGelu, kGeluTanh, kSilu, kTanh, kSigmoid };

}  // namespace apogee

#endif  // APOGEE_TENSOR_OPS_KINDS_H_
