// SPDX-License-Identifier: Apache-2.0

// The arguments of the element-wise kernels (see args.h), and the loop over operands of different
// shapes.
//
//   const Broadcast over = MakeBroadcast(out.shape(), {a.shape(), b.shape()});
#ifndef APOGEE_TENSOR_KERNELS_ELEMENTWISE_ARGS_H_
#define APOGEE_TENSOR_KERNELS_ELEMENTWISE_ARGS_H_

#include <cstdint>
#include <initializer_list>

#include "apogee/core/dtype.h"
#include "apogee/core/shape.h"
#include "apogee/tensor/ops/kinds.h"

namespace apogee {

// A loop over the elements of a contiguous result. Every operand is contiguous, too, and repeated
// along the dims where its stride is 0. Neighbouring dims are merged: along two of them, some
// operand does not go on without a gap.
struct Broadcast {
  static constexpr int kMaxOperands = 3;

  int rank = 1;  // at least 1
  int64_t sizes[Shape::kMaxRank] = {1};
  int64_t strides[kMaxOperands][Shape::kMaxRank] = {{1}, {1}, {1}};

  int64_t numel() const {
    int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= sizes[d];
    return n;
  }
};

// Operands whose shapes broadcast to `shape`: aligned at the last dim, each size is the result's
// or 1.
inline Broadcast MakeBroadcast(const Shape& shape, std::initializer_list<Shape> operands) {
  Broadcast over;
  int rank = 0;
  for (int d = 0; d < shape.rank(); ++d) {
    if (shape[d] == 1) continue;
    int64_t steps[Broadcast::kMaxOperands] = {};
    bool merge = rank > 0;
    int k = 0;
    for (const Shape& operand : operands) {
      const int own = d - (shape.rank() - operand.rank());
      if (own >= 0 && operand[own] != 1) {
        steps[k] = operand.RowMajorStrides()[static_cast<size_t>(own)];
      }
      merge = merge && over.strides[k][rank - 1] == steps[k] * shape[d];
      ++k;
    }
    if (!merge) ++rank;
    over.sizes[rank - 1] = (merge ? over.sizes[rank - 1] : 1) * shape[d];
    for (k = 0; k < static_cast<int>(operands.size()); ++k) over.strides[k][rank - 1] = steps[k];
  }
  if (rank > 0) over.rank = rank;
  return over;
}

// out = a op b; strides of a and b, in this order. out has `dtype`, or is u8 (1 or 0) for a
// comparison. out may be a if the shapes are equal. Comparisons take any dtype.
struct BinaryArgs {
  BinaryOp op;
  DType dtype;
  const void* a;
  const void* b;
  void* out;
  Broadcast over;
};

// out = mask != 0 ? a : b; strides of mask, a and b. mask is u8.
struct WhereArgs {
  DType dtype;
  const void* mask;
  const void* a;
  const void* b;
  void* out;
  Broadcast over;
};

// y = f(x), of unary_functions.h. first and second are the function's parameters.
struct UnaryForwardArgs {
  UnaryOp op;
  DType dtype;
  const void* x;
  void* y;
  int64_t n;
  double first, second;
};
// dx = dy * f'(x). `saved` is y for the functions that SavesResult, else x. dx may be dy.
struct UnaryBackwardArgs {
  UnaryOp op;
  DType dtype;
  const void* saved;
  const void* dy;
  void* dx;
  int64_t n;
  double first, second;
};

}  // namespace apogee

#endif  // APOGEE_TENSOR_KERNELS_ELEMENTWISE_ARGS_H_
