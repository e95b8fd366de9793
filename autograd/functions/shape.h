// SPDX-License-Identifier: Apache-2.0

// Differentiable changes of shape.
//
//   Tensor heads = autograd::View(x, {batch, tokens, num_heads, head_size});
//   auto parts = autograd::Split(gates, 3, -1);                // three equal parts
//   Tensor sequence = autograd::Stack(states, 1);              // T of [batch, d] -> [batch, T, d]
//
// View, Transpose, Permute, Expand and Slice give views: they share x's storage, and forward copies
// nothing. Together the slices of a tensor cost a backward that is linear in its size. Shapes and
// ranges that do not fit throw Error.
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_SHAPE_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_SHAPE_H_

#include <vector>

#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// x must be contiguous: call Contiguous first if it may not be.
Tensor View(const Tensor& x, const Shape& shape);
Tensor Transpose(const Tensor& x, int dim0, int dim1);
// Dim i of the result is x's dim dims[i].
Tensor Permute(const Tensor& x, const std::vector<int>& dims);
// Repeats dims of size 1, and leading dims that x lacks, as `shape` says.
Tensor Expand(const Tensor& x, const Shape& shape);
// The range [start, start + length) of a dim. Outside of the range the gradient is zeros.
Tensor Slice(const Tensor& x, int dim, int64_t start, int64_t length);
// `count` slices of equal size. Throws Error if the dim is not divisible.
std::vector<Tensor> Split(const Tensor& x, int64_t count, int dim);
// Slices of these sizes, which must add up to the dim's.
std::vector<Tensor> Split(const Tensor& x, const std::vector<int64_t>& sizes, int dim);
// A row-major copy if x is strided, else x itself.
Tensor Contiguous(const Tensor& x);

// The tensors after each other along a dim. Their other dims and dtypes are equal.
Tensor Concat(const std::vector<Tensor>& tensors, int dim);
// The tensors along a new dim. Their shapes and dtypes are equal.
Tensor Stack(const std::vector<Tensor>& tensors, int dim);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_SHAPE_H_
