// SPDX-License-Identifier: Apache-2.0

// Differentiable arithmetic, functions of each element, reductions, and casts.
//
//   Tensor y = autograd::Add(x, autograd::Scale(residual, 0.5));
//   Tensor centered = autograd::Sub(x, autograd::Mean(x, {-1}, /*keep_dims=*/true));
//   Tensor bounded = autograd::Clamp(autograd::Exp(x), 0, 1);
//
// Operands share dtype and device; Cast converts. Their shapes are broadcast as in NumPy: aligned
// at the last dim, sizes are equal or 1. A mismatch of shapes, dtypes or devices throws Error.
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_ARITHMETIC_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_ARITHMETIC_H_

#include <vector>

#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

Tensor Add(const Tensor& a, const Tensor& b);
Tensor Sub(const Tensor& a, const Tensor& b);
Tensor Mul(const Tensor& a, const Tensor& b);
Tensor Div(const Tensor& a, const Tensor& b);
// NaN if an operand is NaN. The gradient goes to the operand that was taken; to both in halves if
// they are equal.
Tensor Maximum(const Tensor& a, const Tensor& b);
Tensor Minimum(const Tensor& a, const Tensor& b);
// factor * x.
Tensor Scale(const Tensor& x, double factor);
// Over all elements: a scalar of x's dtype.
Tensor Sum(const Tensor& x);
Tensor Mean(const Tensor& x);
// Converts x to another floating dtype. The gradient is converted back to x's.
Tensor Cast(const Tensor& x, DType dtype);

// Functions of each element (those of activation layers are in activation.h). Results have the
// shape and dtype of x; 16-bit floats are computed in f32 and rounded once. Outside of a function's
// domain the result is NaN or infinite, as in the C++ library, and so is its gradient.

Tensor Exp(const Tensor& x);
Tensor Log(const Tensor& x);
// log(1 + x), exact for small x.
Tensor Log1p(const Tensor& x);
Tensor Sqrt(const Tensor& x);
// 1 / sqrt(x).
Tensor Rsqrt(const Tensor& x);
// |x|, whose gradient at 0 is 0.
Tensor Abs(const Tensor& x);
Tensor Square(const Tensor& x);
// log(1 + exp(x)), without overflow.
Tensor Softplus(const Tensor& x);
// x^exponent. Exponents of 1, 2, 0.5 and -0.5 are fast.
Tensor Pow(const Tensor& x, double exponent);
// x limited to [low, high]. The gradient is 0 outside. Throws Error if low > high. Use an infinity
// for a limit that does not exist.
Tensor Clamp(const Tensor& x, double low, double high);
// cap * tanh(x / cap): about x near 0, and never beyond cap or -cap. Throws Error unless cap is
// above 0 and finite.
Tensor SoftCap(const Tensor& x, double cap);

// mask != 0 ? a : b, broadcast. The mask is u8, 1 or 0 (ops::Less, ops::Equal). An element that is
// not taken gets a gradient of 0, even if it is NaN.
Tensor Where(const Tensor& mask, const Tensor& a, const Tensor& b);
// x where the mask is 0, else `value`.
Tensor MaskedFill(const Tensor& x, const Tensor& mask, double value);

// Reductions over dims, which may be negative. The result loses them, or keeps them with size 1.
// Sums are in f32 (f64 for f64) or wider, and the result is rounded once to x's dtype. Naming no
// dim, one twice, or one that x does not have throws Error.

Tensor Sum(const Tensor& x, const std::vector<int>& dims, bool keep_dims = false);
// NaN over no elements.
Tensor Mean(const Tensor& x, const std::vector<int>& dims, bool keep_dims = false);
// NaN if an element is NaN. The gradient goes to the first of equal elements. Over no elements they
// throw Error.
Tensor Max(const Tensor& x, const std::vector<int>& dims, bool keep_dims = false);
Tensor Min(const Tensor& x, const std::vector<int>& dims, bool keep_dims = false);
// log(sum(exp(x))), without overflow.
Tensor LogSumExp(const Tensor& x, const std::vector<int>& dims, bool keep_dims = false);
// sum((x - mean)^2) / (n - correction) over n elements: 1 for a sample's variance, 0 for that of
// the elements themselves. Throws Error if n <= correction.
Tensor Var(const Tensor& x, const std::vector<int>& dims, bool keep_dims = false,
           double correction = 1);
// y[.., j, ..] is the sum of x[.., k, ..] for k <= j.
Tensor CumSum(const Tensor& x, int dim);
// The place (i64) of the largest element along a dim, the first of equal ones. Not differentiable.
Tensor ArgMax(const Tensor& x, int dim, bool keep_dim = false);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_ARITHMETIC_H_
