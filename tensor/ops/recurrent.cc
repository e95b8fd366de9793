// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/ops/recurrent.h"

#include "apogee/tensor/kernel_table.h"
#include "apogee/tensor/ops/check.h"

namespace apogee::ops {
namespace {

// The sizes of a step, and checks of its tensors.
class Step {
 public:
  // `first` is [rows, sections * units] of the step's dtype.
  Step(const char* op, const char* name, const Tensor& first, int64_t sections)
      : op_(op), first_(first) {
    APOGEE_CHECK(first.defined() && first.rank() == 2 && first.size(1) % sections == 0, op, ": ",
                 name, " must be [rows, ", sections, " units]");
    units_ = first.size(1) / sections;
    Check(name, first, sections);
  }
  void Check(const char* name, const Tensor& x, int64_t sections) const {
    Check(name, x, sections, first_.dtype());
  }
  void CheckWide(const char* name, const Tensor& x, int64_t sections) const {
    Check(name, x, sections, ComputeDType(first_.dtype()));
  }
  int64_t rows() const { return first_.size(0); }
  int64_t units() const { return units_; }

 private:
  void Check(const char* name, const Tensor& x, int64_t sections, DType dtype) const {
    const Shape shape{first_.size(0), sections * units_};
    APOGEE_CHECK(x.defined(), op_, ": ", name, " is undefined");
    APOGEE_CHECK(x.shape() == shape && x.dtype() == dtype && x.is_contiguous(), op_, ": ", name,
                 " is ", DTypeName(x.dtype()), " ", x.shape(), ", must be ", DTypeName(dtype), " ",
                 shape, ", contiguous");
    CheckSameDevice(op_, x, first_);
  }

  const char* op_;
  const Tensor& first_;
  int64_t units_;
};

}  // namespace

void GruCellForward(const GruForwardStep& step) {
  const Step sizes("gru cell", "x", step.x, 3);
  sizes.CheckWide("product", step.product, 3);
  sizes.Check("h", step.h, 1);
  sizes.Check("y", step.y, 1);
  if (step.gates.defined()) sizes.Check("gates", step.gates, 4);
  const DeviceContext& context = *step.x.context();
  context.kernels().gru_cell_forward(context,
                                     {.dtype = step.x.dtype(),
                                      .x = step.x.raw(),
                                      .product = step.product.raw(),
                                      .h = step.h.raw(),
                                      .y = step.y.raw(),
                                      .gates = step.gates.defined() ? step.gates.raw() : nullptr,
                                      .rows = sizes.rows(),
                                      .units = sizes.units()});
}

void GruCellBackward(const GruBackwardStep& step) {
  const Step sizes("gru cell backward", "gates", step.gates, 4);
  sizes.Check("h", step.h, 1);
  sizes.Check("dy", step.dy, 1);
  sizes.CheckWide("dproduct", step.dproduct, 1);
  sizes.CheckWide("dstate", step.dstate, 1);
  sizes.Check("dx", step.dx, 3);
  sizes.Check("dp", step.dp, 3);
  const DeviceContext& context = *step.gates.context();
  context.kernels().gru_cell_backward(context, {.dtype = step.gates.dtype(),
                                                .gates = step.gates.raw(),
                                                .h = step.h.raw(),
                                                .dy = step.dy.raw(),
                                                .dproduct = step.dproduct.raw(),
                                                .dstate = step.dstate.raw(),
                                                .dx = step.dx.raw(),
                                                .dp = step.dp.raw(),
                                                .rows = sizes.rows(),
                                                .units = sizes.units()});
}

void LstmCellForward(const LstmForwardStep& step) {
  const Step sizes("lstm cell", "x", step.x, 4);
  sizes.CheckWide("product", step.product, 4);
  sizes.CheckWide("c", step.c, 1);
  sizes.CheckWide("c_next", step.c_next, 1);
  sizes.Check("y", step.y, 1);
  if (step.gates.defined()) sizes.Check("gates", step.gates, 4);
  const DeviceContext& context = *step.x.context();
  context.kernels().lstm_cell_forward(context,
                                      {.dtype = step.x.dtype(),
                                       .x = step.x.raw(),
                                       .product = step.product.raw(),
                                       .c = step.c.raw(),
                                       .c_next = step.c_next.raw(),
                                       .y = step.y.raw(),
                                       .gates = step.gates.defined() ? step.gates.raw() : nullptr,
                                       .rows = sizes.rows(),
                                       .units = sizes.units()});
}

void LstmCellBackward(const LstmBackwardStep& step) {
  const Step sizes("lstm cell backward", "gates", step.gates, 4);
  sizes.CheckWide("c", step.c, 1);
  sizes.CheckWide("c_next", step.c_next, 1);
  sizes.Check("dy", step.dy, 1);
  sizes.CheckWide("dproduct", step.dproduct, 1);
  sizes.CheckWide("dstate", step.dstate, 1);
  sizes.Check("dx", step.dx, 4);
  const DeviceContext& context = *step.gates.context();
  context.kernels().lstm_cell_backward(context, {.dtype = step.gates.dtype(),
                                                 .gates = step.gates.raw(),
                                                 .c = step.c.raw(),
                                                 .c_next = step.c_next.raw(),
                                                 .dy = step.dy.raw(),
                                                 .dproduct = step.dproduct.raw(),
                                                 .dstate = step.dstate.raw(),
                                                 .dx = step.dx.raw(),
                                                 .rows = sizes.rows(),
                                                 .units = sizes.units()});
}

}  // namespace apogee::ops
