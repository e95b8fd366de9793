// SPDX-License-Identifier: Apache-2.0

// Activation functions, SwiGLU, softmax and dropout.
//
//   Tensor h = autograd::Activate(Activation::kGeluTanh, x);
//   Tensor z = autograd::SwiGlu(gate, up);                     // silu(gate) * up
//   Tensor d = autograd::Dropout(x, 0.1, generator);           // inverted: kept elements / (1 - p)
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_ACTIVATION_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_ACTIVATION_H_

#include "apogee/core/rng.h"
#include "apogee/core/sequence_part.h"
#include "apogee/tensor/kernels/args.h"
#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

Tensor Activate(Activation kind, const Tensor& x);
inline Tensor Gelu(const Tensor& x) { return Activate(Activation::kGelu, x); }
inline Tensor GeluTanh(const Tensor& x) { return Activate(Activation::kGeluTanh, x); }
inline Tensor Silu(const Tensor& x) { return Activate(Activation::kSilu, x); }
inline Tensor Relu(const Tensor& x) { return Activate(Activation::kRelu, x); }

// gate and up of one shape and dtype.
Tensor SwiGlu(const Tensor& gate, const Tensor& up);
// Over the last dim.
Tensor Softmax(const Tensor& x);
// The columns [first, first + n) of `total` that an activation's last dim of n is; 0: all.
struct ColumnWindow {
  int64_t first = 0;
  int64_t total = 0;
};

// Takes one stream of `generator`. The mask of x [samples, ..] is numbered from the generator's
// first_sample, so that a batch split over ranks is masked as the whole batch is. Only the stream's
// key is kept for backward. Columns, and tokens of x [samples, tokens, ..], that ranks hold a part
// of each are masked as the whole is; throws Error when x is known to be a part of the columns
// (Node::is_cut) and `columns` does not say which. p in [0, 1); p == 0 returns x.
Tensor Dropout(const Tensor& x, double p, Generator& generator, const ColumnWindow& columns = {},
               const SequencePart& tokens = {});

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_ACTIVATION_H_
