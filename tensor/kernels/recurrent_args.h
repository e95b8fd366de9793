// SPDX-License-Identifier: Apache-2.0

// The arguments of the kernels of recurrent cells (see args.h): one step of `rows` samples, each
// with `units` units. Gates are sections of `units` columns, side by side, in torch's order.
//
// "wide" is the ComputeType of `dtype`: f32, or f64 for f64. The sums that a step adds up are wide,
// so that only what is kept for another step or for backward is rounded.
#ifndef APOGEE_TENSOR_KERNELS_RECURRENT_ARGS_H_
#define APOGEE_TENSOR_KERNELS_RECURRENT_ARGS_H_

#include <cstdint>

#include "apogee/core/dtype.h"

namespace apogee {

// GRU (Cho et al., 2014, with torch's place of the second bias):
//   r = sigmoid(x_r + p_r), z = sigmoid(x_z + p_z), n = tanh(x_n + r * p_n)
//   y = (1 - z) * n + z * h
// x [rows, 3 units] is the input's product, p [rows, 3 units] (wide) the state's product, both with
// their biases, in the order r, z, n. h [rows, units] is the state before the step, y after it.
// `gates` [rows, 4 units] gets r, z, n and p_n for backward; it may be null.
struct GruCellForwardArgs {
  DType dtype;
  const void* x;
  const void* product;
  const void* h;
  void* y;
  void* gates;
  int64_t rows, units;
};
// With dh = dy + dproduct + dstate, the gradient of y:
//   dx        [rows, 3 units]: the gradient of x
//   dp        [rows, 3 units]: the gradient of p
//   dstate    [rows, units], wide: becomes dh * z, the part of h's gradient that needs no product
// dproduct [rows, units] (wide) is the other part of the later step's gradient.
struct GruCellBackwardArgs {
  DType dtype;
  const void* gates;
  const void* h;
  const void* dy;
  const void* dproduct;
  void* dstate;
  void* dx;
  void* dp;
  int64_t rows, units;
};

// LSTM (Hochreiter and Schmidhuber, 1997, with a forget gate):
//   i = sigmoid(x_i + p_i), f = sigmoid(x_f + p_f), g = tanh(x_g + p_g), o = sigmoid(x_o + p_o)
//   c_next = f * c + i * g
//   y = o * tanh(c_next)
// x [rows, 4 units] and p [rows, 4 units] (wide) are as in the GRU, in the order i, f, g, o. c and
// c_next [rows, units] are wide. `gates` [rows, 4 units] gets i, f, g, o for backward; it may be
// null.
struct LstmCellForwardArgs {
  DType dtype;
  const void* x;
  const void* product;
  const void* c;
  void* c_next;
  void* y;
  void* gates;
  int64_t rows, units;
};
// dh = dy + dproduct is the gradient of y. dstate [rows, units] (wide) is the gradient of c_next
// from the later step, and becomes that of c. dx [rows, 4 units] is the gradient of x, and of p.
struct LstmCellBackwardArgs {
  DType dtype;
  const void* gates;
  const void* c;
  const void* c_next;
  const void* dy;
  const void* dproduct;
  void* dstate;
  void* dx;
  int64_t rows, units;
};

}  // namespace apogee

#endif  // APOGEE_TENSOR_KERNELS_RECURRENT_ARGS_H_
