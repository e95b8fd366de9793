// SPDX-License-Identifier: Apache-2.0

// The order in which a copy between two strided layouts goes through the elements, the same on
// every device. Private to the backends.
//
// - Dims of size 1 are dropped.
// - The others are sorted so that y's innermost dim is contiguous if possible.
// - Neighbouring dims are merged if both layouts step over them without a gap.
// - The last two dims are a plane of rows and columns, for which the backends have loops.
//
//   const CopyLayout layout = SimplifyCopy(args);
//   if (layout.row().x_stride == 1 && layout.col().y_stride == 1) ...   // a transposition
#ifndef APOGEE_TENSOR_KERNELS_COPY_LAYOUT_H_
#define APOGEE_TENSOR_KERNELS_COPY_LAYOUT_H_

#include <algorithm>

#include "apogee/tensor/kernels/args.h"

namespace apogee {

struct CopyDim {
  int64_t size, x_stride, y_stride;
};

// Outer dims come first; rank is at least 2.
struct CopyLayout {
  CopyDim dims[Shape::kMaxRank + 2];
  int rank = 0;

  const CopyDim& row() const { return dims[rank - 2]; }
  const CopyDim& col() const { return dims[rank - 1]; }
};

inline CopyLayout SimplifyCopy(const CopyArgs& args) {
  CopyLayout layout;
  for (int i = 0; i < args.shape.rank(); ++i) {
    const int64_t size = args.shape[i];
    if (size != 1) layout.dims[layout.rank++] = {size, args.x_strides[i], args.y_strides[i]};
  }
  std::stable_sort(layout.dims, layout.dims + layout.rank,
                   [](const CopyDim& a, const CopyDim& b) { return a.y_stride > b.y_stride; });
  // Merge a dim into the one inside it when both layouts step over it without a gap.
  CopyLayout merged;
  for (int i = 0; i < layout.rank; ++i) {
    const CopyDim& dim = layout.dims[i];
    CopyDim* outer = merged.rank > 0 ? &merged.dims[merged.rank - 1] : nullptr;
    if (outer != nullptr && outer->x_stride == dim.x_stride * dim.size &&
        outer->y_stride == dim.y_stride * dim.size) {
      *outer = {outer->size * dim.size, dim.x_stride, dim.y_stride};
    } else {
      merged.dims[merged.rank++] = dim;
    }
  }
  // For a transposition, the dim that is contiguous in x becomes the rows of the plane.
  if (merged.rank > 2 && merged.dims[merged.rank - 1].x_stride != 1) {
    for (int i = 0; i < merged.rank - 2; ++i) {
      if (merged.dims[i].x_stride == 1) {
        std::rotate(merged.dims + i, merged.dims + i + 1, merged.dims + merged.rank - 1);
        break;
      }
    }
  }
  while (merged.rank < 2) {
    std::move_backward(merged.dims, merged.dims + merged.rank, merged.dims + merged.rank + 1);
    merged.dims[0] = {1, 0, 0};
    ++merged.rank;
  }
  return merged;
}

}  // namespace apogee

#endif  // APOGEE_TENSOR_KERNELS_COPY_LAYOUT_H_
