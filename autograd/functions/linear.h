// SPDX-License-Identifier: Apache-2.0

// Matrix products: the linear layer with fused bias and activation, and plain products.
//
//   Tensor h = autograd::Linear(x, w, b, {.layout = WeightLayout::kInOut, .activation =
//   Activation::kGeluTanh});
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_LINEAR_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_LINEAR_H_

#include <optional>

#include "apogee/tensor/kernels/args.h"
#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// kOutIn: weight [out, in] (Llama, torch Linear). kInOut: weight [in, out] (GPT-2's Conv1D).
enum class WeightLayout { kOutIn, kInOut };

struct LinearOptions {
  WeightLayout layout = WeightLayout::kOutIn;
  // Applied to the result; the value before it is kept for backward.
  std::optional<Activation> activation = {};
  // Of the result, without an activation, and of x's gradient: wider than the operands where either
  // is an addend of a sum that is to be rounded once. Default: the operands'.
  std::optional<DType> out_dtype = {};
  std::optional<DType> input_grad_dtype = {};
};

// activation(x w + bias): x [.., in] -> [.., out]; bias [out] or undefined. The backward splits
// into an input and a weight half (GradPart).
Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const LinearOptions& options = {});

// op(a) op(b) for matrices or equal batches of matrices.
Tensor MatMul(const Tensor& a, const Tensor& b, bool a_trans = false, bool b_trans = false);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_LINEAR_H_
