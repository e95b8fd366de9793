// SPDX-License-Identifier: Apache-2.0

// Matrix products: the linear layer with fused bias and activation, and plain products.
//
//   // x [B, T, in], w [in, out], b [out] -> h [B, T, out]
//   Tensor h = autograd::Linear(
//       x, w, b, {.layout = WeightLayout::kInOut, .activation = Activation::kGeluTanh});
//
// A mismatch of shapes or dtypes throws Error.
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_LINEAR_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_LINEAR_H_

#include <optional>

#include "apogee/tensor/ops/kinds.h"
#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// kOutIn: weight [out, in] (Llama, torch Linear). kInOut: weight [in, out] (GPT-2's Conv1D).
enum class WeightLayout { kOutIn, kInOut };

struct LinearOptions {
  WeightLayout layout = WeightLayout::kOutIn;
  // Applied to the result. The result before the activation is kept for backward.
  std::optional<Activation> activation = {};
  // The dtypes of the result (only without an activation) and of x's gradient. Default: x's dtype.
  // Ask for a wider one if the caller adds several of them and rounds the sum once.
  std::optional<DType> out_dtype = {};
  std::optional<DType> input_grad_dtype = {};
};

// activation(x w + bias), where w is the weight or, for kOutIn, its transpose: x [.., in] ->
// [.., out]. bias is [out] or undefined. Backward can be split into an input and a weight half
// (GradPart).
Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const LinearOptions& options = {});

// op(a) op(b), where op transposes the last two dims if asked to: of two matrices, of two batches
// of matrices with equal leading dims, or of a batch a and a matrix b (see ops::MatMul).
Tensor MatMul(const Tensor& a, const Tensor& b, bool a_trans = false, bool b_trans = false);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_LINEAR_H_
