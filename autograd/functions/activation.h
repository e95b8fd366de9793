// SPDX-License-Identifier: Apache-2.0

// Activation functions, gated units, softmax and dropout.
//
//   Tensor h = autograd::Activate(Activation::kGeluTanh, x);
//   Tensor z = autograd::Gated(Activation::kSilu, gate, up);   // silu(gate) * up
//   Tensor d = autograd::Dropout(x, 0.1, generator);           // kept elements are x / (1 - p)
//
// Results have the shape and dtype of x. A mismatch of shapes or dtypes throws Error.
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_ACTIVATION_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_ACTIVATION_H_

#include "apogee/core/rng.h"
#include "apogee/layout/sequence_part.h"
#include "apogee/tensor/ops/kinds.h"
#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

Tensor Activate(Activation kind, const Tensor& x);
inline Tensor Gelu(const Tensor& x) { return Activate(Activation::kGelu, x); }
inline Tensor GeluTanh(const Tensor& x) { return Activate(Activation::kGeluTanh, x); }
inline Tensor Silu(const Tensor& x) { return Activate(Activation::kSilu, x); }
inline Tensor Relu(const Tensor& x) { return Activate(Activation::kRelu, x); }
inline Tensor Sigmoid(const Tensor& x) { return Activate(Activation::kSigmoid, x); }
inline Tensor Tanh(const Tensor& x) { return Activate(Activation::kTanh, x); }

// activation(gate) * up, of one shape and dtype (Shazeer, "GLU variants improve transformer",
// 2020): SwiGLU with kSilu, GeGLU with kGelu or kGeluTanh, ReGLU with kRelu. The two may be slices
// of the last dim of one tensor; forward then copies neither. With `recompute`, functions that save
// the result keep gate and up, which are kept anyway, and compute the same bits from them in
// backward.
Tensor Gated(Activation kind, const Tensor& gate, const Tensor& up, bool recompute = false);
// Softmax over a dim, and its logarithm, which is exact where a probability is nearly 0.
Tensor Softmax(const Tensor& x, int dim = -1);
Tensor LogSoftmax(const Tensor& x, int dim = -1);
// Says that the last dim, of n columns, is columns [first, first + n) of `total` (tensor
// parallelism). total = 0: the last dim is whole.
struct ColumnWindow {
  int64_t first = 0;
  int64_t total = 0;
};

// Zeroes elements with probability p in [0, 1) and scales the others by 1 / (1 - p). p == 0 returns
// x. Takes one random stream of `generator`; only the stream's key is kept for backward.
//
// The mask is the one of the whole batch, however it is split over ranks:
//   x [samples, ..]          samples are numbered from generator.first_sample()
//   `columns`                the part of the last dim that this rank holds
//   `tokens`                 the part of dim 1 of x [samples, tokens, ..] that this rank holds
// Throws Error if x is known to be a part of the columns (Node::is_cut) and `columns` is not given.
Tensor Dropout(const Tensor& x, double p, Generator& generator, const ColumnWindow& columns = {},
               const SequencePart& tokens = {});

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_ACTIVATION_H_
