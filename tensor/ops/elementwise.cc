// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/ops/elementwise.h"

#include <algorithm>

#include "apogee/tensor/kernel_table.h"
#include "apogee/tensor/kernels/unary_functions.h"
#include "apogee/tensor/ops/check.h"

namespace apogee::ops {

namespace {

const char* NameOf(BinaryOp op) {
  constexpr const char* kNames[] = {"add",     "sub",  "mul",        "div",  "maximum",
                                    "minimum", "less", "less_equal", "equal"};
  return kNames[static_cast<int>(op)];
}

}  // namespace

Shape BroadcastShape(const char* op, const Shape& a, const Shape& b) {
  Shape shape = a.rank() >= b.rank() ? a : b;
  for (int i = 1; i <= std::min(a.rank(), b.rank()); ++i) {
    const int64_t x = a[-i], y = b[-i];
    APOGEE_CHECK(x == y || x == 1 || y == 1, op, ": shapes ", a, " and ", b,
                 " do not broadcast: dim ", -i, " has ", x, " and ", y,
                 ", which must be equal or 1");
    shape.Set(-i, x == 1 ? y : x);
  }
  return shape;
}

Tensor Binary(BinaryOp op, const Tensor& a_in, const Tensor& b_in) {
  const char* name = NameOf(op);
  const Tensor a = Operand(name, "a", a_in);
  const Tensor b = Operand(name, "b", b_in);
  CheckSameDType(name, a, b);
  const Shape shape = BroadcastShape(name, a.shape(), b.shape());
  Tensor out = Tensor::Empty(shape, IsComparison(op) ? DType::kU8 : a.dtype(), a.context());
  if (out.numel() == 0) return out;
  a.context()->kernels().binary(*a.context(),
                                {.op = op,
                                 .dtype = a.dtype(),
                                 .a = a.raw(),
                                 .b = b.raw(),
                                 .out = out.raw(),
                                 .over = MakeBroadcast(shape, {a.shape(), b.shape()})});
  return out;
}

void ScaleInPlace(const Tensor& y, const Tensor& scalar_in) {
  const Tensor scalar = Operand("scale", "the scalar", scalar_in);
  CheckSameDType("scale", y, scalar);
  APOGEE_CHECK(y.is_contiguous() && scalar.numel() == 1,
               "scale: needs a contiguous tensor and one factor, got ", scalar.shape());
  if (y.numel() == 0) return;
  y.context()->kernels().binary(*y.context(),
                                {.op = BinaryOp::kMul,
                                 .dtype = y.dtype(),
                                 .a = y.raw(),
                                 .b = scalar.raw(),
                                 .out = y.raw(),
                                 .over = MakeBroadcast(y.shape(), {y.shape(), scalar.shape()})});
}

Tensor Where(const Tensor& mask_in, const Tensor& a_in, const Tensor& b_in) {
  const Tensor mask = Operand("where", "the mask", mask_in);
  const Tensor a = Operand("where", "a", a_in);
  const Tensor b = Operand("where", "b", b_in);
  APOGEE_CHECK(mask.dtype() == DType::kU8, "where: the mask must be u8 (1 or 0), got ",
               DTypeName(mask.dtype()), "; see ops::Less and ops::Equal");
  CheckSameDevice("where", mask, a);
  CheckSameDType("where", a, b);
  const Shape shape =
      BroadcastShape("where", BroadcastShape("where", a.shape(), b.shape()), mask.shape());
  Tensor out = Tensor::Empty(shape, a.dtype(), a.context());
  if (out.numel() == 0) return out;
  a.context()->kernels().where(
      *a.context(), {.dtype = a.dtype(),
                     .mask = mask.raw(),
                     .a = a.raw(),
                     .b = b.raw(),
                     .out = out.raw(),
                     .over = MakeBroadcast(shape, {mask.shape(), a.shape(), b.shape()})});
  return out;
}

Tensor UnaryForward(UnaryOp op, const Tensor& x_in, double first, double second) {
  const Tensor x = Operand("unary", "x", x_in);
  Tensor y = Tensor::EmptyLike(x);
  x.context()->kernels().unary_forward(*x.context(), {.op = op,
                                                      .dtype = x.dtype(),
                                                      .x = x.raw(),
                                                      .y = y.raw(),
                                                      .n = x.numel(),
                                                      .first = first,
                                                      .second = second});
  return y;
}

bool SavesResult(UnaryOp op) { return unary::SavesResult(op); }

Tensor UnaryBackward(UnaryOp op, const Tensor& saved_in, Tensor dy, double first, double second) {
  const Tensor saved = Operand("unary backward", "saved", saved_in);
  if (!dy.is_contiguous()) dy = dy.Contiguous();
  CheckSameDType("unary backward", saved, dy);
  CheckSameShape("unary backward", saved, dy);
  const Tensor dx = dy.is_sole_owner() ? dy : Tensor::EmptyLike(dy);
  saved.context()->kernels().unary_backward(*saved.context(), {.op = op,
                                                               .dtype = saved.dtype(),
                                                               .saved = saved.raw(),
                                                               .dy = dy.raw(),
                                                               .dx = dx.raw(),
                                                               .n = saved.numel(),
                                                               .first = first,
                                                               .second = second});
  return dx;
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

void Accumulate(const Tensor& y, const Tensor& x_in, double factor, double keep) {
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
                                                  .beta = keep});
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

namespace {

// An operand as rows that are `stride` elements apart: one row, if it is contiguous.
struct RowsOf {
  Tensor x;
  int64_t cols, stride;

  explicit RowsOf(const Tensor& from) : x(from), cols(from.numel()), stride(from.numel()) {
    if (x.is_contiguous()) return;
    // Each dim but the last goes on where the one after it ends.
    bool even = x.stride(-1) == 1 && x.rank() > 1;
    for (int d = 0; d + 2 < x.rank(); ++d) {
      even = even && x.stride(d) == x.stride(d + 1) * x.size(d + 1);
    }
    if (!even) {
      x = x.Contiguous();
      return;
    }
    cols = x.size(-1);
    stride = x.stride(-2);
  }
};

// The operands of a gate, in rows of one size.
struct GateRows {
  RowsOf gate, up;

  GateRows(const Tensor& gate_in, const Tensor& up_in) : gate(gate_in), up(up_in) {
    const int64_t cols = std::min(gate.cols, up.cols);
    for (RowsOf* each : {&gate, &up}) {
      if (each->cols != cols) each->cols = each->stride = cols;
    }
  }
  int64_t rows() const { return gate.cols == 0 ? 0 : gate.x.numel() / gate.cols; }
};

void CheckGate(const Tensor& gate, const Tensor& up) {
  APOGEE_CHECK(gate.defined() && up.defined(), "gated: ", gate.defined() ? "up" : "gate",
               " is undefined");
  gate.CheckOpen();
  up.CheckOpen();
  CheckSameDType("gated", gate, up);
  CheckSameShape("gated", gate, up);
}

}  // namespace

Tensor GatedForward(Activation kind, const Tensor& gate, const Tensor& up) {
  CheckGate(gate, up);
  const GateRows of(gate.Detach(), up.Detach());
  Tensor y = Tensor::EmptyLike(gate);
  gate.context()->kernels().gated_forward(*gate.context(), {.kind = kind,
                                                            .dtype = gate.dtype(),
                                                            .gate = of.gate.x.raw(),
                                                            .up = of.up.x.raw(),
                                                            .y = y.raw(),
                                                            .rows = of.rows(),
                                                            .cols = of.gate.cols,
                                                            .gate_stride = of.gate.stride,
                                                            .up_stride = of.up.stride});
  return y;
}

GatedGrads GatedBackward(Activation kind, const Tensor& gate, const Tensor& up,
                         const Tensor& dy_in) {
  const Tensor dy = Operand("gated", "dy", dy_in);
  CheckSameDType("gated backward", gate, dy);
  CheckSameShape("gated backward", gate, dy);
  const GateRows of(gate, up);
  GatedGrads grads{Tensor::EmptyLike(gate), Tensor::EmptyLike(up)};
  gate.context()->kernels().gated_backward(*gate.context(), {.kind = kind,
                                                             .dtype = gate.dtype(),
                                                             .gate = of.gate.x.raw(),
                                                             .up = of.up.x.raw(),
                                                             .dy = dy.raw(),
                                                             .dgate = grads.dgate.raw(),
                                                             .dup = grads.dup.raw(),
                                                             .rows = of.rows(),
                                                             .cols = of.gate.cols,
                                                             .gate_stride = of.gate.stride,
                                                             .up_stride = of.up.stride});
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

Tensor SoftmaxForward(const Tensor& x_in, bool log) {
  const Tensor x = Operand("softmax", "x", x_in);
  Tensor y = Tensor::EmptyLike(x);
  x.context()->kernels().softmax_forward(*x.context(), {.dtype = x.dtype(),
                                                        .x = x.raw(),
                                                        .y = y.raw(),
                                                        .rows = Rows(x),
                                                        .cols = x.size(-1),
                                                        .log = log});
  return y;
}

Tensor SoftmaxBackward(const Tensor& y, const Tensor& dy_in, bool log) {
  const Tensor dy = Operand("softmax", "dy", dy_in);
  CheckSameDType("softmax backward", y, dy);
  CheckSameShape("softmax backward", y, dy);
  Tensor dx = Tensor::EmptyLike(y);
  y.context()->kernels().softmax_backward(*y.context(), {.dtype = y.dtype(),
                                                         .y = y.raw(),
                                                         .dy = dy.raw(),
                                                         .dx = dx.raw(),
                                                         .rows = Rows(y),
                                                         .cols = y.size(-1),
                                                         .log = log});
  return dx;
}

}  // namespace apogee::ops
