// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/lowrank/low_rank_products.h"

#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/matmul.h"

namespace apogee::optim {
namespace {

// The rows that a segment has elements in.
struct Rows {
  int64_t first, count;
};
Rows RowsOf(const Segment& segment, int64_t cols) {
  const int64_t first = segment.begin / cols;
  return {first, (segment.begin + segment.length + cols - 1) / cols - first};
}

// The elements of a segment (`flat`) as whole rows, with zeros where the first and last row are
// cut.
Tensor AsRows(const Tensor& flat, int64_t skipped, const Shape& shape, DType dtype) {
  if (flat.numel() == shape.numel()) {
    return (flat.dtype() == dtype ? flat : flat.To(dtype, MemoryCategory::kWorkspace)).View(shape);
  }
  const Tensor rows =
      Tensor::Zeros({shape.numel()}, dtype, flat.context(), MemoryCategory::kWorkspace);
  rows.Slice(0, skipped, flat.numel()).CopyFrom(flat);
  return rows.View(shape);
}

}  // namespace

Tensor ProjectPart(const Layout& layout, const Tensor& local, const LowRankBasis& basis,
                   const Shape& shape) {
  const int64_t cols = layout.matrix().cols;
  const DType dtype = basis.left.defined() ? basis.left.dtype() : basis.right.dtype();
  const auto project = [&](const Tensor& rows, int64_t first) {
    Tensor x = rows;
    if (basis.right.defined()) x = ops::MatMul(x, basis.right, {.b_trans = true});
    if (!basis.left.defined()) return x;
    return ops::MatMul(basis.left.Slice(0, first, rows.size(0)), x, {.a_trans = true});
  };
  const Tensor flat = local.View({local.numel()});  // with padding
  if (layout.is_whole()) {
    return project(AsRows(flat.Slice(0, 0, layout.local_numel()), 0, layout.logical_shape(), dtype),
                   0);
  }
  const Tensor sum = Tensor::Zeros(shape, dtype, local.context(), MemoryCategory::kWorkspace);
  int64_t at = 0;
  for (const Segment& segment : layout.segments()) {
    if (segment.length == 0) continue;
    const auto [first, count] = RowsOf(segment, cols);
    const Tensor rows = AsRows(flat.Slice(0, at, segment.length), segment.begin - first * cols,
                               {count, cols}, dtype);
    const Tensor to = basis.left.defined() ? sum : sum.Slice(0, first, count);
    ops::Accumulate(to, project(rows, first));
    at += segment.length;
  }
  return sum;
}

void ForEachBackPart(const Layout& layout, const Tensor& update, const LowRankBasis& basis,
                     const OnBackPart& fn) {
  const int64_t cols = layout.matrix().cols;
  Tensor wide;  // with a left basis: the product with `right`, shared by all rows
  if (basis.left.defined()) {
    wide = basis.right.defined() ? ops::MatMul(update, basis.right) : update;
  }
  int64_t at = 0;
  for (const Segment& segment : layout.segments()) {
    if (segment.length == 0) continue;
    const auto [first, count] = RowsOf(segment, cols);
    const Tensor back = basis.left.defined()
                            ? ops::MatMul(basis.left.Slice(0, first, count), wide)
                            : ops::MatMul(update.Slice(0, first, count), basis.right);
    fn(segment, at,
       back.View({count * cols}).Slice(0, segment.begin - first * cols, segment.length));
    at += segment.length;
  }
}

}  // namespace apogee::optim
