// SPDX-License-Identifier: Apache-2.0

// Convolutions and pools of images [samples, channels, height, width] or sequences [samples,
// channels, length]. No gradient is recorded here (see autograd/functions/convolution.h).
//
//   const ConvSizes sizes = ops::SizesOfConv("conv2d", x, weight, bias, window);
//   Tensor y = ops::ConvForward(sizes, x, weight, bias, x.dtype());
//
// SizesOf.. check the operands; the other functions rely on that. On a GPU the work is queued.
#ifndef APOGEE_TENSOR_OPS_CONVOLUTION_H_
#define APOGEE_TENSOR_OPS_CONVOLUTION_H_

#include "apogee/tensor/kernels/conv_args.h"
#include "apogee/tensor/tensor.h"

namespace apogee::ops {

// How a window moves, along [height, width]. In one dim the length is the width, and the height's
// numbers keep their defaults.
struct WindowOptions {
  int dims = 2;
  int64_t stride[2] = {1, 1}, padding[2] = {0, 0}, dilation[2] = {1, 1}, output_padding[2] = {0, 0};
  bool same_padding = false;
  int64_t groups = 1;
};

// x [samples, in, ..], weight [out, in / groups, kernel ..], bias [out] or undefined. Throws Error,
// with `op` in front, for operands that don't fit.
ConvSizes SizesOfConv(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const WindowOptions& options);
// x [samples, in, ..], weight [in, out / groups, kernel ..], bias [out] or undefined. The sizes are
// those of the convolution that the transposed one is the transpose of: its y has x's shape.
ConvSizes SizesOfTransposedConv(const char* op, const Tensor& x, const Tensor& weight,
                                const Tensor& bias, const WindowOptions& options);

// Results and gradients have `dtype`. See ConvForwardArgs and its neighbours.
Tensor ConvForward(const ConvSizes& sizes, const Tensor& x, const Tensor& weight,
                   const Tensor& bias, DType dtype);
Tensor ConvBackwardInput(const ConvSizes& sizes, const Tensor& dy, const Tensor& weight,
                         const Tensor& bias, DType dtype);
// The result has the shape of `weight`.
Tensor ConvBackwardWeight(const ConvSizes& sizes, const Tensor& x, const Tensor& dy,
                          const Shape& weight, DType dtype);
// dy [samples, channels, ..] -> its sums over everything but the channels.
Tensor SumOfChannels(const Tensor& dy, DType dtype);

// The window of a pool over x, [samples, channels, ..]. Takes stride and padding from the options.
Window WindowOfPool(const char* op, const Tensor& x, const int64_t (&kernel)[2],
                    const WindowOptions& options);

// index (i64): the place in its image of each element of y.
struct MaxPoolResult {
  Tensor y, index;
};
MaxPoolResult MaxPoolForward(const Window& window, const Tensor& x);
// dx, of shape `x`.
Tensor MaxPoolBackward(const Window& window, const Tensor& index, const Tensor& dy, const Shape& x);
Tensor AveragePoolForward(const Window& window, const Tensor& x, bool count_padding);
Tensor AveragePoolBackward(const Window& window, const Tensor& dy, bool count_padding,
                           const Shape& x);

}  // namespace apogee::ops

#endif  // APOGEE_TENSOR_OPS_CONVOLUTION_H_
