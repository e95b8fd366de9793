// SPDX-License-Identifier: Apache-2.0

// Convolutions (LeCun et al., "Backpropagation applied to handwritten zip code recognition", 1989),
// transposed convolutions, and pools, with the names and rules of torch.
//
//   // x [N, 3, 32, 32], w [16, 3, 3, 3], b [16] -> y [N, 16, 16, 16] -> z [N, 16, 8, 8]
//   Tensor y = autograd::Conv2d(x, w, b, {.stride = 2, .padding = 1});
//   Tensor z = autograd::MaxPool2d(y, 2);
//   Tensor up = autograd::ConvTranspose2d(y, w, {}, {.stride = 2, .output_padding = 1});
//
// Images are [samples, channels, height, width], sequences [samples, channels, length]. Sizes count
// elements. All operands have one floating dtype; sums are in f32 (f64 for f64) and rounded once.
// Their order is the same in every run with the same number of threads. Throws Error for a wrong
// rank, for channels that don't fit the weight or are not divisible by groups, for a kernel larger
// than the padded input, and for a mismatch of dtypes. Backward can be split into an input and a
// weight half (GradPart).
#ifndef APOGEE_AUTOGRAD_FUNCTIONS_CONVOLUTION_H_
#define APOGEE_AUTOGRAD_FUNCTIONS_CONVOLUTION_H_

#include <cstdint>
#include <optional>

#include "apogee/tensor/tensor.h"

namespace apogee::autograd {

// A size along height and width: one number for both, or {height, width}. In one dimension both are
// the number along the length.
struct Extent {
  int64_t height, width;
  constexpr Extent(int64_t both) : height(both), width(both) {}  // NOLINT: a number is one
  constexpr Extent(int64_t h, int64_t w) : height(h), width(w) {}
  friend bool operator==(const Extent&, const Extent&) = default;
};

struct ConvOptions {
  Extent stride = 1;
  // Zeros on each side of the input.
  Extent padding = 0;
  // Pads so that the output has the input's size. Needs stride 1, no `padding`, and an odd kernel
  // (or an even dilation).
  bool same_padding = false;
  // The distance between neighbours of the kernel.
  Extent dilation = 1;
  // Channels consist of this many equal parts; a part of the output depends on one of the input.
  int64_t groups = 1;
  // Transposed convolutions only: makes the output longer at its end. Less than the stride.
  Extent output_padding = 0;
  // The dtypes of the result and of x's gradient. Default: x's dtype. Ask for a wider one if the
  // caller adds several of them and rounds the sum once.
  std::optional<DType> out_dtype = {};
  std::optional<DType> input_grad_dtype = {};
};

// x [N, in, H, W], weight [out, in / groups, kernel height, kernel width], bias [out] or undefined
// -> [N, out, (H + 2 padding - dilation * (kernel - 1) - 1) / stride + 1, the same of W].
Tensor Conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const ConvOptions& options = {});
// x [N, in, L], weight [out, in / groups, kernel].
Tensor Conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const ConvOptions& options = {});

// The transpose of Conv2d, which upsamples: x [N, in, H, W], weight [in, out / groups, kernel
// height, kernel width], bias [out] or undefined -> [N, out, (H - 1) * stride - 2 padding +
// dilation * (kernel - 1) + output_padding + 1, the same of W].
Tensor ConvTranspose2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                       const ConvOptions& options = {});
Tensor ConvTranspose1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                       const ConvOptions& options = {});

struct PoolOptions {
  std::optional<Extent> stride = {};  // default: the kernel, so that windows do not overlap
  // At most half of the kernel. A maximum ignores it.
  Extent padding = 0;
  // Averages only: whether the zeros of the padding count in the divisor, as in torch by default.
  bool count_padding = true;
};

// [N, C, H, W] -> [N, C, (H + 2 padding - kernel) / stride + 1, the same of W]. The maximum's
// gradient goes to the first of equal elements. NaN if the window has a NaN.
Tensor MaxPool2d(const Tensor& x, Extent kernel, const PoolOptions& options = {});
Tensor AvgPool2d(const Tensor& x, Extent kernel, const PoolOptions& options = {});
// [N, C, L].
Tensor MaxPool1d(const Tensor& x, Extent kernel, const PoolOptions& options = {});
Tensor AvgPool1d(const Tensor& x, Extent kernel, const PoolOptions& options = {});

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTIONS_CONVOLUTION_H_
