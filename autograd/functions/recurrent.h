// SPDX-License-Identifier: Apache-2.0

// The recurrences of GRU and LSTM over whole sequences, given the products of their inputs:
//
//   // x [T, B, D] -> y [T, B, H]
//   Tensor gates = autograd::Linear(x, weight_ih, bias_ih);           // weight_ih [3 H, D]
//   Tensor y = autograd::Gru(gates, weight_hh, bias_hh);              // weight_hh [3 H, H]
//
// A call is one node, so that the gradient of weight_hh is one product over all steps. Formulas and
// the order of gates are torch's (tensor/kernels/recurrent_args.h). Gates are computed in f32 (f64
// for f64) from the sum of the rounded x and a product that is not rounded. Rounded to x's dtype
// are: y, which is the state of the next step, and what is kept for backward: the gates, and the
// gradients of their sums. The cell state c of an LSTM is f32 (f64 for f64).
//
// A mismatch of shapes or dtypes throws Error.
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_RECURRENT_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_RECURRENT_H_

#include <functional>

#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// For a call that computes only some units of the state, its own: how it gets the others, which the
// products need. Without functions the call computes all units.
struct StateParts {
  // Own units [B, own] -> all units [B, all].
  std::function<Tensor(const Tensor& own)> join;
  // The gradient of what `join` returned, as far as this call's units gave rise to it, f32 (f64 for
  // f64) [B, all] -> the complete gradient of the own units [B, own].
  std::function<Tensor(const Tensor& grad)> own_grad;
};

// x [T, B, 3 H] in the order r, z, n; weight [3 H, all units]; bias [3 H] or undefined; h0 [B, H]
// or undefined: zeros. Returns y [T, B, H]. Backward can be split into an input and a weight half.
Tensor Gru(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& h0 = {},
           const StateParts& parts = {});

struct LstmResult {
  Tensor y;  // [T, B, H]
  // [B, H], of the last step, outside of any graph. Only read it: backward uses the same memory.
  Tensor c;
};
// x [T, B, 4 H] in the order i, f, g, o; weight [4 H, all units]; bias [4 H] or undefined; h0
// [B, H] of x's dtype, and c0 [B, H], f32 (f64 for f64), or undefined: zeros. Backward can be split
// into an input and a weight half.
LstmResult Lstm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& h0 = {},
                const Tensor& c0 = {}, const StateParts& parts = {});

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_RECURRENT_H_
