// SPDX-License-Identifier: Apache-2.0

// Matrix products with bias and transposes, by the fastest library that the backend has.
//
//   // x [.., k], w [n, k], b [n] -> y [.., n]
//   Tensor y = ops::MatMul(x, w, {.b_trans = true, .bias = b});
//
// No gradient is recorded here (see autograd/functions/linear.h). On a GPU the work is queued.
#ifndef APOGEE_TENSOR_OPS_MATMUL_H_
#define APOGEE_TENSOR_OPS_MATMUL_H_

#include <optional>
#include <vector>

#include "apogee/tensor/kernels/args.h"
#include "apogee/tensor/tensor.h"

namespace apogee::ops {

struct MatMulOptions {
  bool a_trans = false;
  bool b_trans = false;
  Tensor bias = {};                     // [n], added to every row; undefined: no bias
  std::optional<DType> out_dtype = {};  // default: the operands' dtype
  // Contiguous memory of the result's shape and dtype, which gets the result and is returned; for
  // loops that would allocate one in every turn. Undefined: a new tensor.
  Tensor out = {};
  // Adds the result to the values of `out`, which must be given.
  bool accumulate = false;
};

// op(a) op(b) + bias, where op transposes the last two dims if asked to. a and b are matrices, or
// have equal leading (batch) dims. If only b is a matrix, a's leading dims are folded into rows
// (not with a_trans). Throws Error on a shape, dtype or device mismatch.
Tensor MatMul(const Tensor& a, const Tensor& b, const MatMulOptions& options = {});

// MatMul of each, none of them batched, in one kernel: for many products that are small. Their
// number and sizes differ as they like.
struct GroupedProduct {
  Tensor a, b;
  MatMulOptions options = {};
};
std::vector<Tensor> MatMulGroup(const std::vector<GroupedProduct>& products);

// pre = MatMul(a, b, options), which backward needs, and y = activation(pre). One kernel if the
// backend has one for both.
struct Activated {
  Tensor y, pre;
};
Activated MatMulActivation(const Tensor& a, const Tensor& b, Activation activation,
                           const MatMulOptions& options = {});

// a^T b for a [.., m] and b [.., n] -> [m, n] of `out_dtype`. The leading dims are equal and are
// summed over. This is the weight gradient of a linear layer.
Tensor MatMulTransA(const Tensor& a, const Tensor& b, DType out_dtype);

}  // namespace apogee::ops

#endif  // APOGEE_TENSOR_OPS_MATMUL_H_
