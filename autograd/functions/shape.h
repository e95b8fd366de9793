// SPDX-License-Identifier: Apache-2.0

// Differentiable views: the result shares x's storage, and forward copies nothing.
//
//   Tensor heads = autograd::View(x, {batch, tokens, num_heads, head_size});
//
// Shapes and ranges that do not fit throw Error.
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_SHAPE_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_SHAPE_H_

#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// x must be contiguous: call Contiguous first if it may not be.
Tensor View(const Tensor& x, const Shape& shape);
Tensor Transpose(const Tensor& x, int dim0, int dim1);
// The range [start, start + length) of a dim. Outside of the range the gradient is zeros.
Tensor Slice(const Tensor& x, int dim, int64_t start, int64_t length);
// A row-major copy if x is strided, else x itself.
Tensor Contiguous(const Tensor& x);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_SHAPE_H_
