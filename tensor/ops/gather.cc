// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/ops/gather.h"

#include "apogee/tensor/kernel_table.h"
#include "apogee/tensor/ops/check.h"

namespace apogee::ops {
namespace {

// The number of elements of dims [begin, end).
int64_t Product(const Shape& shape, int begin, int end) {
  int64_t n = 1;
  for (int d = begin; d < end; ++d) n *= shape[d];
  return n;
}

// Whether the sizes of dims [begin, end) are all 1, or x's.
bool IsSimple(const Shape& index, const Shape& x, int begin, int end) {
  bool ones = true, equal = true;
  for (int d = begin; d < end; ++d) {
    ones = ones && index[d] == 1;
    equal = equal && index[d] == x[d];
  }
  return ones || equal;
}

// An index whose memory `values` owns.
struct CheckedIndex {
  Tensor values;
  DimIndex args;
};

// `limit`: values are in [0, limit).
CheckedIndex Check(const char* op, const Tensor& x, int dim, const Tensor& index, int64_t limit) {
  APOGEE_CHECK(index.defined(), op, ": the index is undefined");
  APOGEE_CHECK(index.rank() == x.rank(), op, ": the index ", index.shape(),
               " needs as many dims as x ", x.shape());
  Shape whole = x.shape();
  whole.Set(dim, index.size(dim));
  for (int d = 0; d < x.rank(); ++d) {
    APOGEE_CHECK(index.size(d) == whole[d] || index.size(d) == 1, op, ": dim ", d, " of the index ",
                 index.shape(), " must be ", whole[d], " or 1, as in x ", x.shape());
  }
  CheckIndices(op, index, x, limit, nullptr);
  Tensor values = index.Detach().Contiguous();
  if (!IsSimple(index.shape(), whole, 0, dim) ||
      !IsSimple(index.shape(), whole, dim + 1, x.rank())) {
    values = values.Expand(whole).Contiguous();
  }
  const int64_t count = whole[dim], inner = Product(values.shape(), dim + 1, x.rank());
  DimIndex args{.values = values.address<int64_t>(),
                .strides = {Product(values.shape(), 0, dim) == 1 ? 0 : count * inner, inner,
                            inner == 1 ? 0 : 1},
                .outer = Product(whole, 0, dim),
                .count = count,
                .size = limit,
                .inner = Product(whole, dim + 1, x.rank())};
  return {std::move(values), args};
}

}  // namespace

Tensor Gather(const Tensor& x_in, int dim, const Tensor& index_in) {
  const Tensor x = Operand("gather", "x", x_in);
  dim = x.shape().Normalize(dim);
  const CheckedIndex index = Check("gather", x, dim, index_in, x.size(dim));
  Shape shape = x.shape();
  shape.Set(dim, index.args.count);
  Tensor y = Tensor::Empty(shape, x.dtype(), x.context());
  x.context()->kernels().gather(
      *x.context(), {.dtype = x.dtype(), .x = x.raw(), .y = y.raw(), .index = index.args});
  return y;
}

Tensor ScatterAdd(const Tensor& x_in, int dim, const Tensor& index_in, int64_t size) {
  const Tensor x = Operand("scatter_add", "x", x_in);
  dim = x.shape().Normalize(dim);
  const CheckedIndex index = Check("scatter_add", x, dim, index_in, size);
  APOGEE_CHECK(index.args.count == x.size(dim), "scatter_add: the index ", index_in.shape(),
               " must have ", x.size(dim), " elements along dim ", dim, ", as x ", x.shape());
  Shape shape = x.shape();
  shape.Set(dim, size);
  Tensor y = Tensor::Empty(shape, x.dtype(), x.context());
  x.context()->kernels().scatter_add(
      *x.context(), {.dtype = x.dtype(), .x = x.raw(), .y = y.raw(), .index = index.args});
  return y;
}

Tensor IndexOfIds(const Tensor& ids, int dim, int rank) {
  APOGEE_CHECK(ids.defined() && ids.rank() == 1, "index_select: needs ids of one dim, got ",
               ids.defined() ? ids.shape().ToString() : "an undefined tensor");
  std::vector<int64_t> sizes(static_cast<size_t>(rank), 1);
  sizes[static_cast<size_t>(dim)] = ids.size(0);
  return ids.Detach().Contiguous().View(Shape(sizes));
}

}  // namespace apogee::ops
