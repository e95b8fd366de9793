// SPDX-License-Identifier: Apache-2.0

// Matrix products: the linear layer with fused bias and activation, plain products, and Einsum.
//
//   // x [B, T, in], w [in, out], b [out] -> h [B, T, out]
//   Tensor h = autograd::Linear(
//       x, w, b, {.layout = WeightLayout::kInOut, .activation = Activation::kGeluTanh});
//
// A mismatch of shapes or dtypes throws Error.
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_LINEAR_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_LINEAR_H_

#include <optional>
#include <string>
#include <vector>

#include "apogee/tensor/ops/kinds.h"
#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// kOutIn: weight [out, in] (Llama, torch Linear). kInOut: weight [in, out] (GPT-2's Conv1D).
enum class WeightLayout { kOutIn, kInOut };

struct LinearOptions {
  WeightLayout layout = WeightLayout::kOutIn;
  // Applied to the result. The result before the activation is kept for backward.
  std::optional<Activation> activation = {};
  // A function that saves the result, such as the next product, keeps the result before the
  // activation instead and computes the same bits from it in backward.
  bool recompute_activation = false;
  // The dtypes of the result (only without an activation) and of x's gradient. Defaults: x's dtype,
  // and GradDType(x). Ask for a wider one if the caller adds several of them and rounds the sum
  // once. A gradient of the result that is wider than x is rounded to x's dtype for the products.
  std::optional<DType> out_dtype = {};
  std::optional<DType> input_grad_dtype = {};
};

// activation(x w + bias), where w is the weight or, for kOutIn, its transpose: x [.., in] ->
// [.., out]. bias is [out] or undefined. Backward can be split into an input and a weight half
// (GradPart).
Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const LinearOptions& options = {});

// op(a) op(b), where op transposes the last two dims if asked to. The dims before these are batch
// dims, and are broadcast (ops::BroadcastShape). With a matrix b, a's batch is one long matrix,
// which is fastest; then a cannot be transposed.
Tensor MatMul(const Tensor& a, const Tensor& b, bool a_trans = false, bool b_trans = false);

// Sums of products over named dims, as in NumPy: "bqhd,bkhd->bhqk", "i,j->ij". A letter names a
// dim; equal letters have equal sizes, and letters that the result lacks are summed over. Two
// operands are one batched matrix product; more are taken from left to right. Throws Error for an
// equation that does not fit, for a letter twice in one operand, and for "...".
Tensor Einsum(const std::string& equation, const std::vector<Tensor>& operands);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_LINEAR_H_
