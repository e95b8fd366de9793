// SPDX-License-Identifier: Apache-2.0

// One step of the cells of GRU and LSTM, given the products of its input and its state. The
// formulas are in tensor/kernels/recurrent_args.h.
//
//   ops::MatMul(h, weight, {.b_trans = true, .bias = bias, .out_dtype = wide, .out = product});
//   ops::GruCellForward({.x = x, .product = product, .h = h, .y = y});
//
// All tensors of a step are contiguous [rows, columns] on one device, and results are written into
// tensors of the caller, such as a step of a sequence's memory. Tensors that are called wide have
// ComputeDType(dtype), the others x's or gates' dtype. Others throw Error. No gradient is recorded
// here (see autograd/functions/recurrent.h). On a GPU the work is queued.
#ifndef APOGEE_TENSOR_OPS_RECURRENT_H_
#define APOGEE_TENSOR_OPS_RECURRENT_H_

#include "apogee/tensor/tensor.h"

namespace apogee::ops {

struct GruForwardStep {
  Tensor x;        // [rows, 3 units]
  Tensor product;  // [rows, 3 units], wide
  Tensor h;        // [rows, units]
  Tensor y;        // [rows, units], written
  Tensor gates;    // [rows, 4 units], written for backward; undefined: not kept
};
void GruCellForward(const GruForwardStep& step);

struct GruBackwardStep {
  Tensor gates;     // [rows, 4 units], of the forward
  Tensor h;         // [rows, units]
  Tensor dy;        // [rows, units]
  Tensor dproduct;  // [rows, units], wide
  Tensor dstate;    // [rows, units], wide, read and written
  Tensor dx, dp;    // [rows, 3 units], written
};
void GruCellBackward(const GruBackwardStep& step);

struct LstmForwardStep {
  Tensor x;        // [rows, 4 units]
  Tensor product;  // [rows, 4 units], wide
  Tensor c;        // [rows, units], wide
  Tensor c_next;   // [rows, units], wide, written
  Tensor y;        // [rows, units], written
  Tensor gates;    // [rows, 4 units], written for backward; undefined: not kept
};
void LstmCellForward(const LstmForwardStep& step);

struct LstmBackwardStep {
  Tensor gates;      // [rows, 4 units], of the forward
  Tensor c, c_next;  // [rows, units], wide
  Tensor dy;         // [rows, units]
  Tensor dproduct;   // [rows, units], wide
  Tensor dstate;     // [rows, units], wide, read and written
  Tensor dx;         // [rows, 4 units], written
};
void LstmCellBackward(const LstmBackwardStep& step);

}  // namespace apogee::ops

#endif  // APOGEE_TENSOR_OPS_RECURRENT_H_
