// SPDX-License-Identifier: Apache-2.0

// Convolutions by products of unfolded images. A thread computes one element of a result from all
// that it depends on: no atomic additions.
#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/kernels.h"
#include "apogee/tensor/kernels/conv_products.h"
#include "apogee/tensor/kernels/window_functions.h"

namespace apogee::cuda {
namespace {

template <typename T>
void Unfold(const DeviceContext& context, const UnfoldArgs& args) {
  const T* x = static_cast<const T*>(args.x);
  T* columns = static_cast<T*>(args.columns);
  const Window w = args.window;
  ForEach(context, args.planes * w.kernel_size() * w.out_size(), [=] __device__(int64_t n) {
    const int64_t ow = n % w.out[1], row = n / w.out[1];
    const int64_t oh = row % w.out[0], k = row / w.out[0];
    const int64_t j = k % w.kernel[1], plane_i = k / w.kernel[1];
    const int64_t i = plane_i % w.kernel[0], plane = plane_i / w.kernel[0];
    const int64_t h = window::Place(w, 0, oh, i), c = window::Place(w, 1, ow, j);
    const bool inside = h >= 0 && h < w.in[0] && c >= 0 && c < w.in[1];
    columns[n] = inside ? x[(plane * w.in[0] + h) * w.in[1] + c] : T(0.0f);
  });
}

template <typename T>
void Fold(const DeviceContext& context, const FoldArgs& args) {
  using C = ComputeType<T>;
  const C* columns = static_cast<const C*>(args.columns);
  T* y = static_cast<T*>(args.y);
  const Window w = args.window;
  const bool accumulate = args.accumulate;
  ForEach(context, args.planes * w.in_size(), [=] __device__(int64_t n) {
    const int64_t col = n % w.in[1], plane_row = n / w.in[1];
    const int64_t row = plane_row % w.in[0], plane = plane_row / w.in[0];
    C sum = C(0);
    for (int64_t i = 0; i < w.kernel[0]; ++i) {
      const int64_t oh = window::StopAt(w, 0, row, i);
      if (oh < 0) continue;
      for (int64_t j = 0; j < w.kernel[1]; ++j) {
        const int64_t ow = window::StopAt(w, 1, col, j);
        if (ow < 0) continue;
        const int64_t k = (plane * w.kernel[0] + i) * w.kernel[1] + j;
        sum += columns[(k * w.out[0] + oh) * w.out[1] + ow];
      }
    }
    y[n] = Cast<T>(accumulate ? Load(y + n) + sum : sum);
  });
}

}  // namespace

void unfold(const DeviceContext& context, const UnfoldArgs& args) {
  DispatchFloat(args.dtype, "unfold", [&]<typename T>() { Unfold<T>(context, args); });
}

void fold(const DeviceContext& context, const FoldArgs& args) {
  DispatchFloat(args.y_dtype, "fold", [&]<typename T>() { Fold<T>(context, args); });
}

void conv_forward(const DeviceContext& context, const ConvForwardArgs& args) {
  ConvForwardByProducts(context, args);
}

void conv_backward_input(const DeviceContext& context, const ConvBackwardInputArgs& args) {
  ConvBackwardInputByProducts(context, args);
}

void conv_backward_weight(const DeviceContext& context, const ConvBackwardWeightArgs& args) {
  ConvBackwardWeightByProducts(context, args);
}

}  // namespace apogee::cuda
