// SPDX-License-Identifier: Apache-2.0

// Reductions over dims, and running sums. No gradient is recorded here (see
// autograd/functions/reduce.h).
//
//   const ops::Reduction over("sum", x.shape(), {0, 2});              // x [a, b, c] -> [b]
//   Tensor sums = ops::Sum(x, over, /*keep_dims=*/false, x.dtype());
//
// x may have any floating dtype. Dims may be negative; naming none, one twice, or one that x does
// not have throws Error, and so does an extreme of no elements. On a GPU the work is queued.
#ifndef APOGEE_TENSOR_OPS_REDUCE_H_
#define APOGEE_TENSOR_OPS_REDUCE_H_

#include <vector>

#include "apogee/tensor/ops/kinds.h"
#include "apogee/tensor/tensor.h"

namespace apogee::ops {

// Tensors of a shape seen as [outer, reduce, inner], where `reduce` holds the dims that a reduction
// takes away.
class Reduction {
 public:
  // `op` begins the texts of errors.
  Reduction(const char* op, const Shape& shape, const std::vector<int>& dims);

  int64_t outer() const { return outer_; }
  int64_t reduce() const { return reduce_; }
  int64_t inner() const { return inner_; }
  // The shape of the result: the dims are taken away, or keep size 1.
  Shape Result(bool keep_dims) const { return keep_dims ? kept_ : dropped_; }
  // x's elements as [outer, reduce, inner], contiguous. Copies x if the reduced dims are not
  // neighbours.
  Tensor Arrange(const Tensor& x) const;
  // The inverse, for a gradient.
  Tensor Restore(const Tensor& dx) const;

 private:
  const char* op_;
  Shape shape_, kept_, dropped_;
  std::vector<int> order_;  // of the arranged dims; empty: their own
  int64_t outer_ = 1, reduce_ = 1, inner_ = 1;
};

// scale * (the sum over the dims), rounded to `dtype`.
Tensor Sum(const Tensor& x, const Reduction& over, bool keep_dims, DType dtype, double scale = 1.0);
// Sums over the dims over which a tensor of `shape` was repeated to x's shape.
Tensor SumTo(const Tensor& x, const Shape& shape);

// Both have the shape [outer, inner]. index (i64) is the first place in `reduce`.
struct ExtremeResult {
  Tensor y, index;
};
ExtremeResult ExtremeForward(Extreme kind, const Tensor& x, const Reduction& over);
// The gradient of x: dy at the indices, 0 elsewhere.
Tensor ExtremeBackward(const Tensor& index, const Tensor& dy, const Reduction& over);

// y has x's dtype, stat f32 (f64 for f64); both have the shape [outer, inner]. For a variance,
// y = sum((x - mean)^2) / (reduce - correction).
struct StatisticResult {
  Tensor y, stat;
};
StatisticResult StatisticForward(Statistic kind, const Tensor& x, const Reduction& over,
                                 double correction = 0);
// The gradient of x.
Tensor StatisticBackward(Statistic kind, const Tensor& x, const Reduction& over, const Tensor& stat,
                         const Tensor& dy, double correction = 0);

// y[.., j, ..] is the sum of x[.., k, ..] for k <= j, or for k >= j if `reverse`.
Tensor CumSum(const Tensor& x, int dim, bool reverse = false);

}  // namespace apogee::ops

#endif  // APOGEE_TENSOR_OPS_REDUCE_H_
