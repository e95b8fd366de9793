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

Reduction::Reduction(const char* op, const Tensor& x, const std::vector<int>& dims) : x_(x) {
  APOGEE_CHECK(x.defined(), op, ": x is undefined");
  APOGEE_CHECK(!dims.empty(), op, ": names no dim of shape ", x.shape());
  std::vector<int> reduced;
  for (const int dim : dims) {
    APOGEE_CHECK(dim >= -x.rank() && dim < x.rank(), op, ": dim ", dim, " is outside shape ",
                 x.shape());
    reduced.push_back(x.shape().Normalize(dim));
  }
  std::ranges::sort(reduced);
  const auto twice = std::ranges::adjacent_find(reduced);
  APOGEE_CHECK(twice == reduced.end(), op, ": dim ", twice == reduced.end() ? 0 : *twice,
               " is named twice for shape ", x.shape());
  kept_ = x.shape();
  std::vector<int64_t> rest;
  std::vector<int> order;
  for (int d = 0; d < x.rank(); ++d) {
    if (std::ranges::binary_search(reduced, d)) {
      kept_.Set(d, 1);
      reduce_ *= x.size(d);
    } else {
      rest.push_back(x.size(d));
      order.push_back(d);
      (d < reduced.front() ? outer_ : inner_) *= x.size(d);
    }
  }
  dropped_ = Shape(rest);
  const bool neighbours = reduced.back() - reduced.front() + 1 == static_cast<int>(reduced.size());
  if (!neighbours) {
    order.insert(order.end(), reduced.begin(), reduced.end());
    order_ = std::move(order);
    outer_ *= inner_;
    inner_ = 1;
    x_ = x.Detach().Permute(order_);
  }
  x_ = Operand(op, "x", x_);
}

Tensor Reduction::Restore(const Tensor& dx) const {
  const Tensor in_order = dx.View(x_.shape());
  if (order_.empty()) return in_order;
  std::vector<int> back(order_.size());
  for (size_t i = 0; i < order_.size(); ++i) {
    back[static_cast<size_t>(order_[i])] = static_cast<int>(i);
  }
  return in_order.Permute(back).Contiguous();
}

Tensor Sum(const Tensor& x_in, const std::vector<int>& dims, bool keep_dims, DType dtype,
           double scale) {
  const Reduction over("sum", x_in, dims);
  const Tensor& x = over.x();
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
  return Sum(x, dims, true, x.dtype()).View(shape);
}

ExtremeResult ExtremeForward(Extreme kind, const Reduction& over) {
  const Tensor& x = over.x();
  APOGEE_CHECK(over.reduce() > 0, kind == Extreme::kMax ? "max" : "min",
               ": no elements to compare in shape ", x.shape());
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

Tensor ExtremeBackward(const Tensor& index, const Tensor& dy_in, int64_t outer, int64_t reduce,
                       int64_t inner) {
  const Tensor dy = Operand("extreme", "dy", dy_in);
  Tensor dx = Tensor::Empty({outer, reduce, inner}, dy.dtype(), dy.context());
  dy.context()->kernels().scatter_add(*dy.context(), {.dtype = dy.dtype(),
                                                      .x = dy.raw(),
                                                      .y = dx.raw(),
                                                      .index = {.values = index.address<int64_t>(),
                                                                .strides = {inner, 0, 1},
                                                                .outer = outer,
                                                                .count = 1,
                                                                .size = reduce,
                                                                .inner = inner}});
  return dx;
}

StatisticResult StatisticForward(Statistic kind, const Reduction& over, double correction) {
  const Tensor& x = over.x();
  const Shape shape{over.outer(), over.inner()};
  StatisticResult result{Tensor::Empty(shape, x.dtype(), x.context()),
                         Tensor::Empty(shape, StatDType(x.dtype()), x.context())};
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

Tensor StatisticBackward(Statistic kind, const Reduction& over, const Tensor& stat,
                         const Tensor& dy_in, double correction) {
  const Tensor& x = over.x();
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
  const Reduction over("cum_sum", x_in, {dim});
  const Tensor& x = over.x();
  Tensor y = Tensor::EmptyLike(x);
  x.context()->kernels().cum_sum(*x.context(), {.dtype = x.dtype(),
                                                .x = x.raw(),
                                                .y = y.raw(),
                                                .outer = over.outer(),
                                                .size = over.reduce(),
                                                .inner = over.inner(),
                                                .reverse = reverse});
  return y;
}

}  // namespace apogee::ops
