// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/ops/elementwise.h"

#include "apogee/tensor/kernel_table.h"
#include "apogee/tensor/ops/check.h"

namespace apogee::ops {

Tensor Binary(BinaryOp op, const Tensor& a_in, const Tensor& b_in) {
  const char* name = "binary";
  const Tensor a = Operand(name, "a", a_in);
  const Tensor b = Operand(name, "b", b_in);
  CheckSameDType(name, a, b);
  bool suffix = b.rank() <= a.rank();
  for (int i = 1; suffix && i <= b.rank(); ++i) suffix = a.size(-i) == b.size(-i);
  APOGEE_CHECK(suffix, "binary: shape ", b.shape(), " is not a suffix of ", a.shape());
  Tensor out = Tensor::EmptyLike(a);
  if (out.numel() == 0) return out;
  a.context()->kernels().binary(*a.context(), {.op = op,
                                               .dtype = a.dtype(),
                                               .a = a.raw(),
                                               .b = b.raw(),
                                               .out = out.raw(),
                                               .n = a.numel(),
                                               .b_period = b.numel()});
  return out;
}

Tensor Scale(const Tensor& x, double factor) { return Scale(x, factor, x.dtype()); }

Tensor Scale(const Tensor& x_in, double factor, DType dtype) {
  const Tensor x = Operand("scale", "x", x_in);
  Tensor y = Tensor::EmptyLike(x, dtype);
  x.context()->kernels().scale_add(*x.context(), {.x_dtype = x.dtype(),
                                                  .y_dtype = dtype,
                                                  .x = x.raw(),
                                                  .y = y.raw(),
                                                  .n = x.numel(),
                                                  .alpha = factor,
                                                  .beta = 0});
  return y;
}

void Accumulate(const Tensor& y, const Tensor& x_in, double factor) {
  const Tensor x = Operand("accumulate", "x", x_in);
  APOGEE_CHECK(y.defined() && y.is_contiguous(), "accumulate: y must be defined and contiguous");
  APOGEE_CHECK(x.numel() == y.numel(), "accumulate: ", x.shape(), " into ", y.shape());
  CheckSameDevice("accumulate", x, y);
  y.context()->kernels().scale_add(*y.context(), {.x_dtype = x.dtype(),
                                                  .y_dtype = y.dtype(),
                                                  .x = x.raw(),
                                                  .y = y.raw(),
                                                  .n = y.numel(),
                                                  .alpha = factor,
                                                  .beta = 1});
}

Tensor Spread(const Tensor& scalar, double factor, const Shape& shape, DType dtype) {
  const DeviceScalar value = ScalarOperand("spread", scalar);
  Tensor y = Tensor::Empty(shape, dtype, scalar.context());
  if (y.numel() == 0) return y;
  y.context()->kernels().fill(
      *y.context(),
      {.dtype = dtype, .y = y.raw(), .n = y.numel(), .value = factor, .factor = value});
  return y;
}

Tensor ActivationForward(Activation kind, const Tensor& x_in) {
  const Tensor x = Operand("activation", "x", x_in);
  Tensor y = Tensor::EmptyLike(x);
  x.context()->kernels().activation_forward(
      *x.context(), {.kind = kind, .dtype = x.dtype(), .x = x.raw(), .y = y.raw(), .n = x.numel()});
  return y;
}

Tensor ActivationBackward(Activation kind, const Tensor& x_in, Tensor dy) {
  const Tensor x = Operand("activation", "x", x_in);
  if (!dy.is_contiguous()) dy = dy.Contiguous();
  CheckSameDType("activation backward", x, dy);
  CheckSameShape("activation backward", x, dy);
  const Tensor dx = dy.is_sole_owner() ? dy : Tensor::EmptyLike(dy);
  x.context()->kernels().activation_backward(*x.context(), {.kind = kind,
                                                            .dtype = x.dtype(),
                                                            .x = x.raw(),
                                                            .dy = dy.raw(),
                                                            .dx = dx.raw(),
                                                            .n = x.numel()});
  return dx;
}

Tensor SwiGluForward(const Tensor& gate_in, const Tensor& up_in) {
  const Tensor gate = Operand("swiglu", "gate", gate_in);
  const Tensor up = Operand("swiglu", "up", up_in);
  CheckSameDType("swiglu", gate, up);
  CheckSameShape("swiglu", gate, up);
  Tensor y = Tensor::EmptyLike(gate);
  gate.context()->kernels().swiglu_forward(
      *gate.context(),
      {.dtype = gate.dtype(), .gate = gate.raw(), .up = up.raw(), .y = y.raw(), .n = gate.numel()});
  return y;
}

SwiGluGrads SwiGluBackward(const Tensor& gate, const Tensor& up, const Tensor& dy_in) {
  const Tensor dy = Operand("swiglu", "dy", dy_in);
  CheckSameDType("swiglu backward", gate, dy);
  SwiGluGrads grads{Tensor::EmptyLike(gate), Tensor::EmptyLike(up)};
  gate.context()->kernels().swiglu_backward(*gate.context(), {.dtype = gate.dtype(),
                                                              .gate = gate.raw(),
                                                              .up = up.raw(),
                                                              .dy = dy.raw(),
                                                              .dgate = grads.dgate.raw(),
                                                              .dup = grads.dup.raw(),
                                                              .n = gate.numel()});
  return grads;
}

Tensor Dropout(const Tensor& x_in, double p, PhiloxKey key, int64_t first_element,
               int64_t row_stride) {
  APOGEE_CHECK(p >= 0 && p < 1, "dropout: p must be in [0, 1), got ", p);
  const Tensor x = Operand("dropout", "x", x_in);
  RefuseRandomInGraph("dropout", x);
  const int64_t row = x.rank() == 0 ? 1 : x.size(-1);
  APOGEE_CHECK(row_stride == 0 || row_stride >= row, "dropout: rows of ", row,
               " elements cannot be ", row_stride, " apart");
  Tensor y = Tensor::EmptyLike(x);
  x.context()->kernels().dropout(*x.context(), {.dtype = x.dtype(),
                                                .x = x.raw(),
                                                .y = y.raw(),
                                                .n = x.numel(),
                                                .p = p,
                                                .key = key,
                                                .first_element = first_element,
                                                .row = row,
                                                .row_stride = row_stride == 0 ? row : row_stride});
  return y;
}

Tensor SumLeading(const Tensor& x_in, int inner_dims, DType dtype, double scale) {
  const Tensor x = Operand("sum", "x", x_in);
  APOGEE_CHECK(inner_dims >= 0 && inner_dims <= x.rank(), "sum: keeps ", inner_dims,
               " trailing dims of shape ", x.shape());
  const Shape shape(x.shape().dims().last(static_cast<size_t>(inner_dims)));
  const int64_t inner = shape.numel();
  Tensor y = Tensor::Empty(shape, dtype, x.context());
  x.context()->kernels().sum(*x.context(), {.x_dtype = x.dtype(),
                                            .y_dtype = dtype,
                                            .x = x.raw(),
                                            .y = y.raw(),
                                            .outer = 1,
                                            .reduce = inner == 0 ? 0 : x.numel() / inner,
                                            .inner = inner,
                                            .scale = scale,
                                            .accumulate = false});
  return y;
}

Tensor SoftmaxForward(const Tensor& x_in) {
  const Tensor x = Operand("softmax", "x", x_in);
  Tensor y = Tensor::EmptyLike(x);
  x.context()->kernels().softmax_forward(
      *x.context(),
      {.dtype = x.dtype(), .x = x.raw(), .y = y.raw(), .rows = Rows(x), .cols = x.size(-1)});
  return y;
}

Tensor SoftmaxBackward(const Tensor& y, const Tensor& dy_in) {
  const Tensor dy = Operand("softmax", "dy", dy_in);
  CheckSameDType("softmax backward", y, dy);
  CheckSameShape("softmax backward", y, dy);
  Tensor dx = Tensor::EmptyLike(y);
  y.context()->kernels().softmax_backward(*y.context(), {.dtype = y.dtype(),
                                                         .y = y.raw(),
                                                         .dy = dy.raw(),
                                                         .dx = dx.raw(),
                                                         .rows = Rows(y),
                                                         .cols = y.size(-1)});
  return dx;
}

}  // namespace apogee::ops
