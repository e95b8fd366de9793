// SPDX-License-Identifier: Apache-2.0

// Element-wise ops, sums and softmax on whole tensors. Operands share one dtype and device; results
// are new contiguous tensors. No gradient is recorded here (see autograd/functions/arithmetic.h).
//
//   Tensor sum = ops::Add(x, bias);              // bias [d] is broadcast over x [.., d]
//   Tensor mask = ops::Less(x, limit);           // u8: 1 or 0
//   ops::Accumulate(grad, micro_grad);           // grad += micro_grad, in place
//
// A mismatch of shapes, dtypes or devices throws Error. On a GPU the work is queued.
#ifndef APOGEE_TENSOR_OPS_ELEMENTWISE_H_
#define APOGEE_TENSOR_OPS_ELEMENTWISE_H_

#include "apogee/core/rng.h"
#include "apogee/tensor/ops/kinds.h"
#include "apogee/tensor/tensor.h"

namespace apogee::ops {

// The shape to which the shapes broadcast: aligned at the last dim, sizes are equal or 1.
Shape BroadcastShape(const char* op, const Shape& a, const Shape& b);

// a op b, broadcast. A comparison takes operands of any dtype, and gives a mask: u8, 1 or 0.
Tensor Binary(BinaryOp op, const Tensor& a, const Tensor& b);
inline Tensor Add(const Tensor& a, const Tensor& b) { return Binary(BinaryOp::kAdd, a, b); }
inline Tensor Sub(const Tensor& a, const Tensor& b) { return Binary(BinaryOp::kSub, a, b); }
inline Tensor Mul(const Tensor& a, const Tensor& b) { return Binary(BinaryOp::kMul, a, b); }
inline Tensor Div(const Tensor& a, const Tensor& b) { return Binary(BinaryOp::kDiv, a, b); }
// y *= scalar, in place: y is contiguous, `scalar` has one element of y's dtype, which the device
// reads; the host does not wait.
void ScaleInPlace(const Tensor& y, const Tensor& scalar);
// NaN if an operand is NaN.
inline Tensor Maximum(const Tensor& a, const Tensor& b) { return Binary(BinaryOp::kMax, a, b); }
inline Tensor Minimum(const Tensor& a, const Tensor& b) { return Binary(BinaryOp::kMin, a, b); }
inline Tensor Less(const Tensor& a, const Tensor& b) { return Binary(BinaryOp::kLess, a, b); }
inline Tensor LessEqual(const Tensor& a, const Tensor& b) {
  return Binary(BinaryOp::kLessEqual, a, b);
}
inline Tensor Equal(const Tensor& a, const Tensor& b) { return Binary(BinaryOp::kEqual, a, b); }

// mask != 0 ? a : b, all broadcast. The mask is u8.
Tensor Where(const Tensor& mask, const Tensor& a, const Tensor& b);

// A function of each element, with the parameters that it has (UnaryOp).
Tensor UnaryForward(UnaryOp op, const Tensor& x, double first = 0, double second = 0);
// Whether UnaryBackward takes the result, in place of x.
bool SavesResult(UnaryOp op);
// dy * f'(x). Overwrites dy if nothing else owns it.
Tensor UnaryBackward(UnaryOp op, const Tensor& saved, Tensor dy, double first = 0,
                     double second = 0);

// factor * x, rounded to `dtype` (default: x's).
Tensor Scale(const Tensor& x, double factor);
Tensor Scale(const Tensor& x, double factor, DType dtype);
// A tensor whose elements all are factor * scalar. `scalar` has one element; the device reads it,
// the host does not wait.
Tensor Spread(const Tensor& scalar, double factor, const Shape& shape, DType dtype);
// y = keep * y + factor * x, in place. x and y may differ in dtype; y is contiguous and has as many
// elements as x.
void Accumulate(const Tensor& y, const Tensor& x, double factor = 1.0, double keep = 1.0);

Tensor ActivationForward(Activation kind, const Tensor& x);
// dy * f'(x). Overwrites dy if nothing else owns it.
Tensor ActivationBackward(Activation kind, const Tensor& x, Tensor dy);

// f(gate) * up. Neither operand is copied if it is contiguous or a slice of the last dim of a
// contiguous tensor.
Tensor GatedForward(Activation kind, const Tensor& gate, const Tensor& up);
struct GatedGrads {
  Tensor dgate, dup;
};
GatedGrads GatedBackward(Activation kind, const Tensor& gate, const Tensor& up, const Tensor& dy);

// See DropoutArgs. The same call on dy is the backward pass. The rows of x's last dim are
// `row_stride` elements of the random stream apart; 0: they follow each other.
Tensor Dropout(const Tensor& x, double p, PhiloxKey key, int64_t first_element,
               int64_t row_stride = 0);

// scale * (the sum over all but the last `inner_dims` dims): [.., inner] -> [inner].
// With inner_dims = 0 it is the sum of all elements, a scalar.
Tensor SumLeading(const Tensor& x, int inner_dims, DType dtype, double scale = 1.0);

// Over the last dim; its logarithm if `log`.
Tensor SoftmaxForward(const Tensor& x, bool log = false);
Tensor SoftmaxBackward(const Tensor& y, const Tensor& dy, bool log = false);

}  // namespace apogee::ops

#endif  // APOGEE_TENSOR_OPS_ELEMENTWISE_H_
