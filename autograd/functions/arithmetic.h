// SPDX-License-Identifier: Apache-2.0

// Differentiable arithmetic, reductions and casts.
//
//   Tensor y = autograd::Add(x, autograd::Scale(residual, 0.5));
//
// Operands share dtype and device. A mismatch of shapes, dtypes or devices throws Error.
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_ARITHMETIC_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_ARITHMETIC_H_

#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// b's shape is a's or a suffix of it (broadcast over a's leading dims).
Tensor Add(const Tensor& a, const Tensor& b);
Tensor Sub(const Tensor& a, const Tensor& b);
Tensor Mul(const Tensor& a, const Tensor& b);
Tensor Div(const Tensor& a, const Tensor& b);
// factor * x.
Tensor Scale(const Tensor& x, double factor);
// Over all elements: a scalar of x's dtype.
Tensor Sum(const Tensor& x);
Tensor Mean(const Tensor& x);
// Converts x to another floating dtype. The gradient is converted back to x's.
Tensor Cast(const Tensor& x, DType dtype);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_ARITHMETIC_H_
