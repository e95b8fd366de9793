// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/ops/convolution.h"

#include <algorithm>

#include "apogee/tensor/kernel_table.h"
#include "apogee/tensor/ops/check.h"
#include "apogee/tensor/ops/reduce.h"

namespace apogee::ops {
namespace {

// For messages: "height", "width", or "length".
const char* DimName(const WindowOptions& options, int dim) {
  return options.dims == 1 ? "length" : dim == 0 ? "height" : "width";
}
const char* ImageText(int dims) {
  return dims == 1 ? "[samples, channels, length]" : "[samples, channels, height, width]";
}

// Size of x along the window's dim `dim`.
int64_t SizeAlong(const Tensor& x, const WindowOptions& options, int dim) {
  return options.dims == 1 && dim == 0 ? 1 : x.size(dim - 2);
}

// [samples, channels, ..] of an image of this size.
Shape ImageShape(int dims, int64_t samples, int64_t channels, const int64_t (&size)[2]) {
  return dims == 1 ? Shape{samples, channels, size[1]} : Shape{samples, channels, size[0], size[1]};
}

void CheckImage(const char* op, const Tensor& x, int dims) {
  APOGEE_CHECK(x.defined(), op, ": x is undefined");
  x.CheckOpen();
  APOGEE_CHECK(x.rank() == dims + 2, op, ": x must be ", ImageText(dims), ", got shape ",
               x.shape());
  APOGEE_CHECK(IsFloat(x.dtype()), op, ": x must be floating, got ", DTypeName(x.dtype()));
  for (int dim = 1; dim < x.rank(); ++dim) {
    APOGEE_CHECK(x.size(dim) >= 1, op, ": x ", x.shape(),
                 " is empty; only the number of samples may be 0");
  }
}

void CheckWindow(const char* op, const WindowOptions& options) {
  for (const int dim : {0, 1}) {
    const char* const name = DimName(options, dim);
    APOGEE_CHECK(options.stride[dim] >= 1, op, ": the stride along the ", name, " is ",
                 options.stride[dim], ", must be at least 1");
    APOGEE_CHECK(options.dilation[dim] >= 1, op, ": the dilation along the ", name, " is ",
                 options.dilation[dim], ", must be at least 1");
    APOGEE_CHECK(options.padding[dim] >= 0, op, ": the padding along the ", name, " is ",
                 options.padding[dim], ", must be at least 0");
  }
}

// Checks what does not depend on the direction. `weight_text`: the meaning of its first two dims.
void CheckWeights(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const WindowOptions& options, const char* weight_text) {
  APOGEE_CHECK(weight.defined(), op, ": the weight is undefined");
  weight.CheckOpen();
  CheckSameDType(op, x, weight);
  APOGEE_CHECK(weight.rank() == options.dims + 2, op, ": the weight must be ", weight_text, " and ",
               options.dims, " kernel sizes, got shape ", weight.shape());
  APOGEE_CHECK(weight.numel() > 0, op, ": the weight ", weight.shape(), " is empty");
  APOGEE_CHECK(options.groups >= 1, op, ": groups is ", options.groups, ", must be at least 1");
  APOGEE_CHECK(x.size(1) % options.groups == 0, op, ": the ", x.size(1), " channels of x ",
               x.shape(), " are not divisible by groups ", options.groups);
  if (bias.defined()) CheckSameDType(op, x, bias);
}

void CheckBias(const char* op, const Tensor& bias, int64_t features) {
  APOGEE_CHECK(!bias.defined() || bias.shape() == Shape{features}, op, ": the bias must be [",
               features, "], one number for each output channel, got ", bias.shape());
}

// The number of stops of a window along one dim. Throws Error if it does not fit once.
int64_t StopsAlong(const char* op, const Window& window, const WindowOptions& options, int dim) {
  const int64_t padded = window.in[dim] + 2 * window.padding[dim];
  const int64_t extent = window.dilation[dim] * (window.kernel[dim] - 1) + 1;
  APOGEE_CHECK(extent <= padded, op, ": the kernel covers ", extent, " places along the ",
               DimName(options, dim), " (size ", window.kernel[dim], ", dilation ",
               window.dilation[dim], "), but the padded input has only ", padded);
  return (padded - extent) / window.stride[dim] + 1;
}

// The padding of a convolution that keeps the size.
int64_t SamePadding(const char* op, const Window& window, const WindowOptions& options, int dim) {
  APOGEE_CHECK(window.stride[dim] == 1 && window.padding[dim] == 0, op,
               ": same_padding needs stride 1 and no padding of its own, got stride ",
               window.stride[dim], " and padding ", window.padding[dim]);
  const int64_t both = window.dilation[dim] * (window.kernel[dim] - 1);
  APOGEE_CHECK(both % 2 == 0, op, ": same_padding of a kernel of ", window.kernel[dim],
               " (dilation ", window.dilation[dim], ") along the ", DimName(options, dim),
               " would be asymmetric; use an odd kernel, or give the padding");
  return both / 2;
}

// The window with the kernel of `weight`; neither `in` nor `out` is set.
Window WindowOf(const Tensor& weight, const WindowOptions& options) {
  Window window{};
  for (const int dim : {0, 1}) {
    window.kernel[dim] = SizeAlong(weight, options, dim);
    window.stride[dim] = options.stride[dim];
    window.padding[dim] = options.padding[dim];
    window.dilation[dim] = options.dilation[dim];
  }
  return window;
}

// 2 for images, 1 for sequences.
int DimsOf(const Tensor& x) { return x.rank() - 2; }

}  // namespace

ConvSizes SizesOfConv(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const WindowOptions& options) {
  CheckImage(op, x, options.dims);
  CheckWindow(op, options);
  CheckWeights(op, x, weight, bias, options, "[out, in / groups]");
  const int64_t groups = options.groups, out = weight.size(0);
  APOGEE_CHECK(out % groups == 0, op, ": the ", out, " output channels of the weight ",
               weight.shape(), " are not divisible by groups ", groups);
  APOGEE_CHECK(weight.size(1) == x.size(1) / groups, op, ": x ", x.shape(), " has ",
               x.size(1) / groups, " channels in each of ", groups, " groups, the weight ",
               weight.shape(), " is for ", weight.size(1));
  CheckBias(op, bias, out);
  Window window = WindowOf(weight, options);
  for (const int dim : {0, 1}) {
    APOGEE_CHECK(options.output_padding[dim] == 0, op,
                 ": output_padding is for transposed convolutions");
    window.in[dim] = SizeAlong(x, options, dim);
    if (options.same_padding) window.padding[dim] = SamePadding(op, window, options, dim);
    window.out[dim] = StopsAlong(op, window, options, dim);
  }
  return {.batch = x.size(0),
          .groups = groups,
          .in_channels = x.size(1),
          .out_channels = out,
          .window = window};
}

ConvSizes SizesOfTransposedConv(const char* op, const Tensor& x, const Tensor& weight,
                                const Tensor& bias, const WindowOptions& options) {
  CheckImage(op, x, options.dims);
  CheckWindow(op, options);
  CheckWeights(op, x, weight, bias, options, "[in, out / groups]");
  APOGEE_CHECK(!options.same_padding, op,
               ": same_padding is for convolutions that are not transposed; give the padding");
  const int64_t out = weight.size(1) * options.groups;
  APOGEE_CHECK(weight.size(0) == x.size(1), op, ": x ", x.shape(), " has ", x.size(1),
               " channels, the weight ", weight.shape(), " is for ", weight.size(0));
  CheckBias(op, bias, out);
  Window window = WindowOf(weight, options);
  for (const int dim : {0, 1}) {
    const int64_t extra = options.output_padding[dim];
    APOGEE_CHECK(extra >= 0 && extra < window.stride[dim], op, ": output_padding along the ",
                 DimName(options, dim), " is ", extra,
                 ", must be at least 0 and less than the stride ", window.stride[dim]);
    window.out[dim] = SizeAlong(x, options, dim);
    window.in[dim] = (window.out[dim] - 1) * window.stride[dim] - 2 * window.padding[dim] +
                     window.dilation[dim] * (window.kernel[dim] - 1) + extra + 1;
    APOGEE_CHECK(window.out[dim] >= 1 && window.in[dim] >= 1, op, ": x ", x.shape(),
                 " with a kernel of ", window.kernel[dim], " and padding ", window.padding[dim],
                 " gives no output along the ", DimName(options, dim));
  }
  return {.batch = x.size(0),
          .groups = options.groups,
          .in_channels = out,
          .out_channels = x.size(1),
          .window = window};
}

Tensor ConvForward(const ConvSizes& sizes, const Tensor& x_in, const Tensor& weight_in,
                   const Tensor& bias_in, DType dtype) {
  const Tensor x = Operand("conv", "x", x_in), weight = Operand("conv", "weight", weight_in);
  const Tensor bias = bias_in.defined() ? Operand("conv", "bias", bias_in) : Tensor();
  CheckSameDType("conv", x, weight);
  Tensor y = Tensor::Empty(ImageShape(DimsOf(x), sizes.batch, sizes.out_channels, sizes.window.out),
                           dtype, x.context());
  x.context()->kernels().conv_forward(*x.context(), {.dtype = x.dtype(),
                                                     .y_dtype = dtype,
                                                     .x = x.raw(),
                                                     .weight = weight.raw(),
                                                     .bias = bias.defined() ? bias.raw() : nullptr,
                                                     .y = y.raw(),
                                                     .sizes = sizes});
  return y;
}

Tensor ConvBackwardInput(const ConvSizes& sizes, const Tensor& dy_in, const Tensor& weight_in,
                         const Tensor& bias_in, DType dtype) {
  const Tensor dy = Operand("conv", "dy", dy_in), weight = Operand("conv", "weight", weight_in);
  const Tensor bias = bias_in.defined() ? Operand("conv", "bias", bias_in) : Tensor();
  CheckSameDType("conv", dy, weight);
  Tensor dx = Tensor::Empty(ImageShape(DimsOf(dy), sizes.batch, sizes.in_channels, sizes.window.in),
                            dtype, dy.context());
  dy.context()->kernels().conv_backward_input(*dy.context(),
                                              {.dtype = dy.dtype(),
                                               .dx_dtype = dtype,
                                               .dy = dy.raw(),
                                               .weight = weight.raw(),
                                               .bias = bias.defined() ? bias.raw() : nullptr,
                                               .dx = dx.raw(),
                                               .sizes = sizes});
  return dx;
}

Tensor ConvBackwardWeight(const ConvSizes& sizes, const Tensor& x_in, const Tensor& dy_in,
                          const Shape& weight, DType dtype) {
  const Tensor x = Operand("conv", "x", x_in), dy = Operand("conv", "dy", dy_in);
  CheckSameDType("conv", x, dy);
  Tensor dweight = Tensor::Empty(weight, dtype, x.context());
  x.context()->kernels().conv_backward_weight(*x.context(), {.dtype = x.dtype(),
                                                             .dweight_dtype = dtype,
                                                             .x = x.raw(),
                                                             .dy = dy.raw(),
                                                             .dweight = dweight.raw(),
                                                             .sizes = sizes});
  return dweight;
}

Tensor SumOfChannels(const Tensor& dy_in, DType dtype) {
  const Tensor dy = Operand("conv", "dy", dy_in);
  const int64_t size = dy.numel() / std::max<int64_t>(1, dy.size(0) * dy.size(1));
  const Tensor images = dy.View({dy.size(0), dy.size(1), size});
  const Tensor sums =
      Sum(images, Reduction("sum", images.shape(), {2}), false, ComputeDType(dy.dtype()));
  return Sum(sums, Reduction("sum", sums.shape(), {0}), false, dtype);
}

Window WindowOfPool(const char* op, const Tensor& x, const int64_t (&kernel)[2],
                    const WindowOptions& options) {
  CheckImage(op, x, options.dims);
  for (const int dim : {0, 1}) {
    APOGEE_CHECK(kernel[dim] >= 1, op, ": the kernel's ", DimName(options, dim), " is ",
                 kernel[dim], ", must be at least 1");
  }
  CheckWindow(op, options);
  Window window{};
  for (const int dim : {0, 1}) {
    APOGEE_CHECK(options.padding[dim] <= kernel[dim] / 2, op, ": the padding along the ",
                 DimName(options, dim), " is ", options.padding[dim],
                 ", must be at most half of the kernel's ", kernel[dim],
                 ", so that no window lies in the padding");
    window.kernel[dim] = kernel[dim];
    window.stride[dim] = options.stride[dim];
    window.padding[dim] = options.padding[dim];
    window.dilation[dim] = 1;
    window.in[dim] = SizeAlong(x, options, dim);
    window.out[dim] = StopsAlong(op, window, options, dim);
  }
  return window;
}

MaxPoolResult MaxPoolForward(const Window& window, const Tensor& x_in) {
  const Tensor x = Operand("max_pool", "x", x_in);
  const Shape shape = ImageShape(DimsOf(x), x.size(0), x.size(1), window.out);
  MaxPoolResult result{Tensor::Empty(shape, x.dtype(), x.context()),
                       Tensor::Empty(shape, DType::kI64, x.context())};
  x.context()->kernels().max_pool_forward(*x.context(), {.dtype = x.dtype(),
                                                         .x = x.raw(),
                                                         .y = result.y.raw(),
                                                         .index = result.index.address<int64_t>(),
                                                         .planes = x.size(0) * x.size(1),
                                                         .window = window});
  return result;
}

Tensor MaxPoolBackward(const Window& window, const Tensor& index, const Tensor& dy_in,
                       const Shape& x) {
  const Tensor dy = Operand("max_pool", "dy", dy_in);
  Tensor dx = Tensor::Empty(x, dy.dtype(), dy.context());
  // A column of the index per plane: its places are added up in ascending order of the windows.
  dy.context()->kernels().scatter_add(*dy.context(),
                                      {.dtype = dy.dtype(),
                                       .x = dy.raw(),
                                       .y = dx.raw(),
                                       .index = {.values = index.address<int64_t>(),
                                                 .strides = {window.out_size(), 1, 0},
                                                 .outer = x[0] * x[1],
                                                 .count = window.out_size(),
                                                 .size = window.in_size(),
                                                 .inner = 1}});
  return dx;
}

Tensor AveragePoolForward(const Window& window, const Tensor& x_in, bool count_padding) {
  const Tensor x = Operand("average_pool", "x", x_in);
  Tensor y = Tensor::Empty(ImageShape(DimsOf(x), x.size(0), x.size(1), window.out), x.dtype(),
                           x.context());
  x.context()->kernels().average_pool_forward(*x.context(), {.dtype = x.dtype(),
                                                             .x = x.raw(),
                                                             .y = y.raw(),
                                                             .planes = x.size(0) * x.size(1),
                                                             .window = window,
                                                             .count_padding = count_padding});
  return y;
}

Tensor AveragePoolBackward(const Window& window, const Tensor& dy_in, bool count_padding,
                           const Shape& x) {
  const Tensor dy = Operand("average_pool", "dy", dy_in);
  Tensor dx = Tensor::Empty(x, dy.dtype(), dy.context());
  dy.context()->kernels().average_pool_backward(*dy.context(), {.dtype = dy.dtype(),
                                                                .dy = dy.raw(),
                                                                .dx = dx.raw(),
                                                                .planes = x[0] * x[1],
                                                                .window = window,
                                                                .count_padding = count_padding});
  return dx;
}

}  // namespace apogee::ops
