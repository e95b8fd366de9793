// SPDX-License-Identifier: Apache-2.0

// Matrix products with bias, transposes and accumulation, on the backend's fastest library.
//
//   Tensor y = ops::MatMul(x, w, {.b_trans = true, .bias = b});   // x [.., k], w [n, k] -> y [..,
//   n]
#ifndef APOGEE_TENSOR_OPS_MATMUL_H_
#define APOGEE_TENSOR_OPS_MATMUL_H_

#include <optional>

#include "apogee/tensor/kernels/args.h"
#include "apogee/tensor/tensor.h"

namespace apogee::ops {

struct MatMulOptions {
  bool a_trans = false;
  bool b_trans = false;
  Tensor bias = {};                     // [n], added to every row; undefined for none
  std::optional<DType> out_dtype = {};  // default: the operands' dtype
};

// a and b are matrices, or share equal leading (batch) dims; a of rank > 2 times a matrix b folds
// a's leading dims into rows (only without a_trans). Throws Error on a shape or dtype mismatch.
Tensor MatMul(const Tensor& a, const Tensor& b, const MatMulOptions& options = {});

// activation(MatMul(a, b, options)) in one pass where the backend has one, and what it is of, which
// backward needs.
struct Activated {
  Tensor y, pre;
};
Activated MatMulActivation(const Tensor& a, const Tensor& b, Activation activation,
                           const MatMulOptions& options = {});

// a^T b for a [.., m], b [.., n] with equal leading dims folded into the contracted dim: the weight
// gradient of a linear layer, [m, n] of `out_dtype`.
Tensor MatMulTransA(const Tensor& a, const Tensor& b, DType out_dtype);

}  // namespace apogee::ops

#endif  // APOGEE_TENSOR_OPS_MATMUL_H_
