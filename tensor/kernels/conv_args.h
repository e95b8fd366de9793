// SPDX-License-Identifier: Apache-2.0

// The arguments of convolutions and pools (see args.h). An image is [height, width], a plane is one
// channel of one sample, and tensors are seen as [planes, height, width].
#ifndef APOGEE_TENSOR_KERNELS_CONV_ARGS_H_
#define APOGEE_TENSOR_KERNELS_CONV_ARGS_H_

#include <cstdint>

#include "apogee/core/dtype.h"

namespace apogee {

// A window that moves over an image of `in` places and stops `out` times along each dim. Stop o
// covers the places o * stride - padding + k * dilation for k < kernel. Places outside of the image
// are padding.
struct Window {
  int64_t in[2], out[2], kernel[2], stride[2], padding[2], dilation[2];

  constexpr int64_t in_size() const { return in[0] * in[1]; }
  constexpr int64_t out_size() const { return out[0] * out[1]; }
  constexpr int64_t kernel_size() const { return kernel[0] * kernel[1]; }
};

// columns[plane, k, o] = x[plane, place k of the window at stop o], 0 for padding.
struct UnfoldArgs {
  DType dtype;
  const void* x;
  void* columns;
  int64_t planes;
  Window window;
};
// The transpose of unfold: y[plane, place] = the sum of columns[plane, k, o] over all k and o that
// name the place, in ascending order of k, plus the y before if `accumulate`. The columns have
// y_dtype's ComputeType; sums are rounded once.
struct FoldArgs {
  DType y_dtype;
  const void* columns;
  void* y;
  int64_t planes;
  Window window;
  bool accumulate;
};

// x [batch, in_channels, window.in], weight [out_channels, in_channels / groups, window.kernel],
// y [batch, out_channels, window.out]. Channels consist of `groups` equal parts; part g of y
// depends on part g of x only.
struct ConvSizes {
  int64_t batch, groups, in_channels, out_channels;
  Window window;
};
// y[n, o, s] = bias[o] + sum over c and k of weight[o, c, k] * x[n, c, place k at stop s].
struct ConvForwardArgs {
  DType dtype, y_dtype;
  const void* x;
  const void* weight;
  const void* bias;  // of `dtype`, or null
  void* y;
  ConvSizes sizes;
};
// dx = the transpose of the forward product, applied to dy, + bias [in_channels], which only
// transposed convolutions have.
struct ConvBackwardInputArgs {
  DType dtype, dx_dtype;
  const void* dy;
  const void* weight;
  const void* bias;  // of `dtype`, or null
  void* dx;
  ConvSizes sizes;
};
// dweight[o, c, k] = sum over n and s of dy[n, o, s] * x[n, c, place k at stop s].
struct ConvBackwardWeightArgs {
  DType dtype, dweight_dtype;
  const void* x;
  const void* dy;
  void* dweight;
  ConvSizes sizes;
};

// y[plane, o] = the largest of the window's places in the image at stop o, and index[plane, o] the
// first of them in the plane. NaN, and its first place, if any of them is NaN. Each window covers a
// place of the image.
struct MaxPoolForwardArgs {
  DType dtype;
  const void* x;
  void* y;
  int64_t* index;
  int64_t planes;
  Window window;
};

// y[plane, o] = the sum of the window's places at stop o, divided by the window's size, or by the
// number of its places in the image unless `count_padding`. Each window covers such a place.
struct AveragePoolForwardArgs {
  DType dtype;
  const void* x;
  void* y;
  int64_t planes;
  Window window;
  bool count_padding;
};
// dx[plane, place] = the sum of dy / divisor over the stops that cover the place, in ascending
// order.
struct AveragePoolBackwardArgs {
  DType dtype;
  const void* dy;
  void* dx;
  int64_t planes;
  Window window;
  bool count_padding;
};

}  // namespace apogee

#endif  // APOGEE_TENSOR_KERNELS_CONV_ARGS_H_
