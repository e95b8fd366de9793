// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/ops/reduce.h"

#include <algorithm>

#include "apogee/tensor/kernel_table.h"
#include "apogee/tensor/ops/check.h"

namespace apogee::ops {
namespace {

double VarianceScale(const Reduction& over, double correction) {
  return 1.0 / (static_cast<double>(over.reduce()) - correction);
}

}  // namespace

Reduction::Reduction(const char* op, const Shape& shape, const std::vector<int>& dims)
    : op_(op), shape_(shape), kept_(shape) {
  APOGEE_CHECK(!dims.empty(), op, ": names no dim of shape ", shape);
  std::vector<int> reduced;
  for (const int dim : dims) {
    APOGEE_CHECK(dim >= -shape.rank() && dim < shape.rank(), op, ": dim ", dim,
                 " is outside shape ", shape);
    reduced.push_back(shape.Normalize(dim));
  }
  std::ranges::sort(reduced);
  const auto twice = std::ranges::adjacent_find(reduced);
  APOGEE_CHECK(twice == reduced.end(), op, ": dim ", twice == reduced.end() ? 0 : *twice,
               " is named twice for shape ", shape);
  std::vector<int64_t> rest;
  std::vector<int> order;
  for (int d = 0; d < shape.rank(); ++d) {
    if (std::ranges::binary_search(reduced, d)) {
      kept_.Set(d, 1);
      reduce_ *= shape[d];
    } else {
      rest.push_back(shape[d]);
      order.push_back(d);
      (d < reduced.front() ? outer_ : inner_) *= shape[d];
    }
  }
  dropped_ = Shape(rest);
  const bool neighbours = reduced.back() - reduced.front() + 1 == static_cast<int>(reduced.size());
  if (!neighbours) {
    order.insert(order.end(), reduced.begin(), reduced.end());
    order_ = std::move(order);
    outer_ *= inner_;
    inner_ = 1;
  }
}

Tensor Reduction::Arrange(const Tensor& x) const {
  const Tensor in_order = order_.empty() ? x : x.Detach().Permute(order_);
  return Operand(op_, "x", in_order).View({outer_, reduce_, inner_});
}

Tensor Reduction::Restore(const Tensor& dx) const {
  if (order_.empty()) return dx.View(shape_);
  std::vector<int64_t> sizes;
  std::vector<int> back(order_.size());
  for (size_t i = 0; i < order_.size(); ++i) {
    sizes.push_back(shape_[order_[i]]);
    back[static_cast<size_t>(order_[i])] = static_cast<int>(i);
  }
  return dx.View(Shape(sizes)).Permute(back).Contiguous();
}

Tensor Sum(const Tensor& x_in, const Reduction& over, bool keep_dims, DType dtype, double scale) {
  const Tensor x = over.Arrange(x_in);
  Tensor y = Tensor::Empty(over.Result(keep_dims), dtype, x.context());
  x.context()->kernels().sum(*x.context(), {.x_dtype = x.dtype(),
                                            .y_dtype = dtype,
                                            .x = x.raw(),
                                            .y = y.raw(),
                                            .outer = over.outer(),
                                            .reduce = over.reduce(),
                                            .inner = over.inner(),
                                            .scale = scale,
                                            .accumulate = false});
  return y;
}

Tensor SumTo(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  std::vector<int> dims;
  for (int d = 0; d < x.rank(); ++d) {
    const int own = d - (x.rank() - shape.rank());
    if (own < 0 || (shape[own] == 1 && x.size(d) != 1)) dims.push_back(d);
  }
  if (dims.empty()) return x.Contiguous().View(shape);
  return Sum(x, Reduction("sum", x.shape(), dims), true, x.dtype()).View(shape);
}

ExtremeResult ExtremeForward(Extreme kind, const Tensor& x_in, const Reduction& over) {
  APOGEE_CHECK(over.reduce() > 0, kind == Extreme::kMax ? "max" : "min",
               ": no elements to compare in shape ", x_in.shape());
  const Tensor x = over.Arrange(x_in);
  const Shape shape{over.outer(), over.inner()};
  ExtremeResult result{Tensor::Empty(shape, x.dtype(), x.context()),
                       Tensor::Empty(shape, DType::kI64, x.context())};
  x.context()->kernels().extreme(*x.context(), {.kind = kind,
                                                .dtype = x.dtype(),
                                                .x = x.raw(),
                                                .y = result.y.raw(),
                                                .index = result.index.address<int64_t>(),
                                                .outer = over.outer(),
                                                .reduce = over.reduce(),
                                                .inner = over.inner()});
  return result;
}

Tensor ExtremeBackward(const Tensor& index, const Tensor& dy_in, const Reduction& over) {
  const Tensor dy = Operand("extreme", "dy", dy_in);
  const Tensor dx =
      Tensor::Empty({over.outer(), over.reduce(), over.inner()}, dy.dtype(), dy.context());
  dy.context()->kernels().scatter_add(*dy.context(), {.dtype = dy.dtype(),
                                                      .x = dy.raw(),
                                                      .y = dx.raw(),
                                                      .index = {.values = index.address<int64_t>(),
                                                                .strides = {over.inner(), 0, 1},
                                                                .outer = over.outer(),
                                                                .count = 1,
                                                                .size = over.reduce(),
                                                                .inner = over.inner()}});
  return over.Restore(dx);
}

StatisticResult StatisticForward(Statistic kind, const Tensor& x_in, const Reduction& over,
                                 double correction) {
  const Tensor x = over.Arrange(x_in);
  const Shape shape{over.outer(), over.inner()};
  StatisticResult result{Tensor::Empty(shape, x.dtype(), x.context()),
                         Tensor::Empty(shape, ComputeDType(x.dtype()), x.context())};
  x.context()->kernels().statistic_forward(*x.context(),
                                           {.kind = kind,
                                            .dtype = x.dtype(),
                                            .x = x.raw(),
                                            .y = result.y.raw(),
                                            .stat = result.stat.raw(),
                                            .outer = over.outer(),
                                            .reduce = over.reduce(),
                                            .inner = over.inner(),
                                            .scale = VarianceScale(over, correction)});
  return result;
}

Tensor StatisticBackward(Statistic kind, const Tensor& x_in, const Reduction& over,
                         const Tensor& stat, const Tensor& dy_in, double correction) {
  const Tensor x = over.Arrange(x_in);
  const Tensor dy = Operand("statistic", "dy", dy_in);
  CheckSameDType("statistic backward", x, dy);
  Tensor dx = Tensor::EmptyLike(x);
  x.context()->kernels().statistic_backward(*x.context(),
                                            {.kind = kind,
                                             .dtype = x.dtype(),
                                             .x = x.raw(),
                                             .stat = stat.raw(),
                                             .dy = dy.raw(),
                                             .dx = dx.raw(),
                                             .outer = over.outer(),
                                             .reduce = over.reduce(),
                                             .inner = over.inner(),
                                             .scale = VarianceScale(over, correction)});
  return over.Restore(dx);
}

Tensor CumSum(const Tensor& x_in, int dim, bool reverse) {
  const Reduction over("cum_sum", x_in.shape(), {dim});
  const Tensor x = over.Arrange(x_in);
  const Tensor y = Tensor::EmptyLike(x);
  x.context()->kernels().cum_sum(*x.context(), {.dtype = x.dtype(),
                                                .x = x.raw(),
                                                .y = y.raw(),
                                                .outer = over.outer(),
                                                .size = over.reduce(),
                                                .inner = over.inner(),
                                                .reverse = reverse});
  return over.Restore(y);
}

}  // namespace apogee::ops
