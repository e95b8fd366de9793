// SPDX-License-Identifier: Apache-2.0

// Reductions over dims, and running sums. No gradient is recorded here (see
// autograd/functions/reduce.h).
//
//   Tensor sums = ops::Sum(x, {0, 2});                     // x [a, b, c] -> [b]
//   auto [y, stat] = ops::StatisticForward(Statistic::kLogSumExp, ops::Reduction("lse", x, {-1}));
//
// x may have any floating dtype. Dims may be negative; naming none, one twice, or one that x does
// not have throws Error, and so does an extreme of no elements. On a GPU the work is queued.
#ifndef APOGEE_TENSOR_OPS_REDUCE_H_
#define APOGEE_TENSOR_OPS_REDUCE_H_

#include <vector>

#include "apogee/tensor/ops/kinds.h"
#include "apogee/tensor/tensor.h"

namespace apogee::ops {

// x seen as [outer, reduce, inner], where `reduce` holds the dims that a reduction takes away.
class Reduction {
 public:
  // `op` begins the texts of errors.
  Reduction(const char* op, const Tensor& x, const std::vector<int>& dims);

  int64_t outer() const { return outer_; }
  int64_t reduce() const { return reduce_; }
  int64_t inner() const { return inner_; }
  // Contiguous. The dims have another order than x's if the reduced ones are not neighbours.
  const Tensor& x() const { return x_; }
  // The shape of the result: the dims are taken away, or keep size 1.
  Shape Result(bool keep_dims) const { return keep_dims ? kept_ : dropped_; }
  // A tensor of x()'s elements (a gradient) in x's own order of dims.
  Tensor Restore(const Tensor& dx) const;

 private:
  Tensor x_;
  Shape kept_, dropped_;
  std::vector<int> order_;  // of x_'s dims; empty: x's own
  int64_t outer_ = 1, reduce_ = 1, inner_ = 1;
};

// scale * (the sum over the dims), rounded to `dtype`.
Tensor Sum(const Tensor& x, const std::vector<int>& dims, bool keep_dims, DType dtype,
           double scale = 1.0);
// Sums over the dims over which a tensor of `shape` was repeated to x's shape.
Tensor SumTo(const Tensor& x, const Shape& shape);

// Both have the shape [outer, inner]. index (i64) is the first place in `reduce`.
struct ExtremeResult {
  Tensor y, index;
};
ExtremeResult ExtremeForward(Extreme kind, const Reduction& over);
// dy at the indices, 0 elsewhere: [outer, reduce, inner].
Tensor ExtremeBackward(const Tensor& index, const Tensor& dy, int64_t outer, int64_t reduce,
                       int64_t inner);

// y has x's dtype, stat f32 (f64 for f64); both have the shape [outer, inner]. For a variance,
// y = sum((x - mean)^2) / (reduce - correction).
struct StatisticResult {
  Tensor y, stat;
};
StatisticResult StatisticForward(Statistic kind, const Reduction& over, double correction = 0);
// The gradient of over.x().
Tensor StatisticBackward(Statistic kind, const Reduction& over, const Tensor& stat,
                         const Tensor& dy, double correction = 0);

// y[.., j, ..] is the sum of x[.., k, ..] for k <= j, or for k >= j if `reverse`.
Tensor CumSum(const Tensor& x, int dim, bool reverse = false);

}  // namespace apogee::ops

#endif  // APOGEE_TENSOR_OPS_REDUCE_H_
