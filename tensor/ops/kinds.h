// SPDX-License-Identifier: Apache-2.0

// The kinds of operations that share a function and a kernel.
//
//   Tensor sum = ops::Binary(BinaryOp::kAdd, a, b);
//   Tensor y = autograd::Activate(Activation::kGelu, x);
#ifndef APOGEE_TENSOR_OPS_KINDS_H_
#define APOGEE_TENSOR_OPS_KINDS_H_

#include <cstdint>

namespace apogee {

// kMax and kMin give NaN if an operand is NaN. The comparisons give a mask: u8, 1 or 0.
enum class BinaryOp { kAdd, kSub, kMul, kDiv, kMax, kMin, kLess, kLessEqual, kEqual };
constexpr bool IsComparison(BinaryOp op) { return op >= BinaryOp::kLess; }

// kSoftplus  log(1 + exp(x))
// kPower     x^first
// kClamp     x limited to [first, second]; NaN stays NaN
// kSoftCap   first * tanh(x / first)
enum class UnaryOp {
  kExp,
  kLog,
  kLog1p,
  kSqrt,
  kRsqrt,
  kAbs,
  kSquare,
  kSoftplus,
  kPower,
  kClamp,
  kSoftCap
};

enum class Extreme { kMax, kMin };
enum class Statistic { kLogSumExp, kVariance };

// kGelu      0.5 x (1 + erf(x / sqrt(2)))
// kGeluTanh  0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as in GPT-2
// kSilu      x * sigmoid(x)
enum class Activation { kRelu, kGelu, kGeluTanh, kSilu, kTanh, kSigmoid };

// Codes of a weight by blocks (kernels/block_codes.h): 4 bits from a map of 16 values, or 8 bits.
enum class BlockCodeKind : uint8_t { kNf4, kInt8 };

}  // namespace apogee

#endif  // APOGEE_TENSOR_OPS_KINDS_H_
