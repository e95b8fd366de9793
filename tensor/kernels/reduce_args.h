// SPDX-License-Identifier: Apache-2.0

// The arguments of the kernels that reduce, add up or index along one dim (see args.h). Tensors are
// seen as [outer, dim, inner]. `sum` is in args.h.
#ifndef APOGEE_TENSOR_KERNELS_REDUCE_ARGS_H_
#define APOGEE_TENSOR_KERNELS_REDUCE_ARGS_H_

#include <cstdint>

#include "apogee/core/dtype.h"
#include "apogee/tensor/ops/kinds.h"

namespace apogee {

// y[o, i] = the largest (smallest) of x[o, :, i], and index[o, i] its first place; index may be
// null. NaN if any element is NaN. reduce >= 1.
struct ExtremeArgs {
  Extreme kind;
  DType dtype;
  const void* x;
  void* y;
  int64_t* index;
  int64_t outer, reduce, inner;
};

// y[o, i], of x's dtype, and stat[o, i], of f32 (f64 for f64), from x[o, :, i]:
//   kLogSumExp  y = stat = log(sum(exp(x)))
//   kVariance   stat = mean(x), y = scale * sum((x - stat)^2)
struct StatisticForwardArgs {
  Statistic kind;
  DType dtype;
  const void* x;
  void* y;
  void* stat;
  int64_t outer, reduce, inner;
  double scale;
};
// dx[o, r, i] = dy[o, i] * the derivative of y by x[o, r, i]:
//   kLogSumExp  exp(x - stat)
//   kVariance   2 * scale * (x - stat)
struct StatisticBackwardArgs {
  Statistic kind;
  DType dtype;
  const void* x;
  const void* stat;
  const void* dy;
  void* dx;
  int64_t outer, reduce, inner;
  double scale;
};

// y[o, j, i] = sum of x[o, k, i] for k <= j, or for k >= j if `reverse`, added in f64 in an order
// that the sizes determine.
struct CumSumArgs {
  DType dtype;
  const void* x;
  void* y;
  int64_t outer, size, inner;
  bool reverse;
};

// An index [outer, count, inner] into the dim of a tensor [outer, size, inner]; `strides` are the
// index's, 0 along dims that it is repeated over.
struct DimIndex {
  const int64_t* values;
  int64_t strides[3];
  int64_t outer, count, size, inner;
};
// y[o, j, i] = x[o, index[o, j, i], i].
struct GatherArgs {
  DType dtype;
  const void* x;
  void* y;
  DimIndex index;
};
// y = 0, then y[o, index[o, j, i], i] += x[o, j, i] in ascending order of j. The sums are in f32
// (f64 for f64) and rounded once.
struct ScatterAddArgs {
  DType dtype;
  const void* x;
  void* y;
  DimIndex index;
};

}  // namespace apogee

#endif  // APOGEE_TENSOR_KERNELS_REDUCE_ARGS_H_
