// SPDX-License-Identifier: Apache-2.0

// Convolutions: by oneDNN where it is fast, else by products of unfolded images.
#include "apogee/tensor/cpu/convolution/convolution_paths.h"
#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/kernels/conv_products.h"
#include "apogee/tensor/kernels/window_functions.h"

namespace apogee::cpu {
namespace {

template <typename T>
void UnfoldKernel(const DeviceContext& context, const UnfoldArgs& args) {
  const T* x = static_cast<const T*>(args.x);
  T* columns = static_cast<T*>(args.columns);
  const Window w = args.window;
  const int64_t stops = w.out[1], stride = w.stride[1];
  ForRows(context, args.planes * w.kernel_size(), w.out_size(), [=](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t plane = at / w.kernel_size(), k = at % w.kernel_size();
      const int64_t i = k / w.kernel[1], j = k % w.kernel[1];
      const window::Range inside = window::Stops(w, 1, j);
      for (int64_t oh = 0; oh < w.out[0]; ++oh) {
        T* to = columns + (at * w.out[0] + oh) * stops;
        const int64_t row = window::Place(w, 0, oh, i);
        if (row < 0 || row >= w.in[0]) {
          std::fill_n(to, stops, T(0.0F));
          continue;
        }
        const T* from = x + (plane * w.in[0] + row) * w.in[1] + window::Place(w, 1, 0, j);
        std::fill(to, to + inside.begin, T(0.0F));
        if (stride == 1) {
          std::copy(from + inside.begin, from + inside.end, to + inside.begin);
        } else {
          for (int64_t ow = inside.begin; ow < inside.end; ++ow) to[ow] = from[ow * stride];
        }
        std::fill(to + inside.end, to + stops, T(0.0F));
      }
    }
  });
}

// Adds row `oh` of the columns of element j of the window to sums, the places [first, last) of an
// image's row.
template <typename C>
void AddColumns(const Window& w, int64_t j, const C* columns, int64_t first, int64_t last,
                C* sums) {
  const int64_t place = window::Place(w, 1, 0, j), stride = w.stride[1];
  const int64_t begin = window::CeilAtLeastZero(first - place, stride);
  const int64_t end = std::min(w.out[1], window::CeilAtLeastZero(last - place, stride));
  C* const to = sums + place - first;
  if (stride == 1) {
#pragma omp simd
    for (int64_t ow = begin; ow < end; ++ow) to[ow] += columns[ow];
  } else {
    for (int64_t ow = begin; ow < end; ++ow) to[ow * stride] += columns[ow];
  }
}

template <typename T>
void FoldKernel(const DeviceContext& context, const FoldArgs& args) {
  using C = ComputeType<T>;
  const C* columns = static_cast<const C*>(args.columns);
  T* y = static_cast<T*>(args.y);
  const Window w = args.window;
  const bool accumulate = args.accumulate;
  constexpr int64_t kTile = 512;
  ForRows(context, args.planes * w.in[0], w.kernel_size() * w.in[1],
          [=](int64_t begin, int64_t end) {
            C sums[kTile];
            for (int64_t at = begin; at < end; ++at) {
              const int64_t plane = at / w.in[0], row = at % w.in[0];
              for (int64_t first = 0; first < w.in[1]; first += kTile) {
                const int64_t last = std::min(first + kTile, w.in[1]);
                std::fill_n(sums, last - first, C(0));
                for (int64_t i = 0; i < w.kernel[0]; ++i) {
                  const int64_t oh = window::StopAt(w, 0, row, i);
                  if (oh < 0) continue;
                  for (int64_t j = 0; j < w.kernel[1]; ++j) {
                    const int64_t k = (plane * w.kernel[0] + i) * w.kernel[1] + j;
                    AddColumns(w, j, columns + (k * w.out[0] + oh) * w.out[1], first, last, sums);
                  }
                }
                T* to = y + at * w.in[1] + first;
                for (int64_t c = 0; c < last - first; ++c) {
                  to[c] = Cast<T>(accumulate ? Load(to[c]) + sums[c] : sums[c]);
                }
              }
            }
          });
}

#ifdef APOGEE_USE_ONEDNN
// y[n, c, ..] = x[n, c, ..] + bias[c]; x and y may be the same.
template <typename T, typename Y, typename C>
void AddChannelBias(const DeviceContext& context, const C* x, const T* bias, Y* y, int64_t planes,
                    int64_t channels, int64_t size) {
  ForRows(context, planes, size, [=](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      const C b = static_cast<C>(Load(bias[plane % channels]));
#pragma omp simd
      for (int64_t i = plane * size; i < (plane + 1) * size; ++i) y[i] = Cast<Y>(x[i] + b);
    }
  });
}

// The input's gradient in f32, then the bias, rounded once.
bool TryTransposedOneDnn(const DeviceContext& context, const ConvBackwardInputArgs& args) {
  ConvBackwardInputArgs product = args;
  product.bias = nullptr;
  if (args.bias == nullptr) return TryConvBackwardInputOneDnn(context, product);
  if (args.dtype != DType::kF32 && args.dtype != DType::kBF16) return false;
  const ConvSizes& sizes = args.sizes;
  const int64_t planes = sizes.batch * sizes.in_channels, size = sizes.window.in_size();
  const bool in_place = args.dx_dtype == DType::kF32;
  const Workspace sums(context, in_place ? 0 : planes * size * int64_t{sizeof(float)});
  product.dx = in_place ? args.dx : sums.data<void>();
  product.dx_dtype = DType::kF32;
  if (!TryConvBackwardInputOneDnn(context, product)) return false;
  DispatchFloat(args.dtype, "conv", [&]<typename T>() {
    DispatchFloat(args.dx_dtype, "conv", [&]<typename Y>() {
      AddChannelBias(context, static_cast<const float*>(product.dx),
                     static_cast<const T*>(args.bias), static_cast<Y*>(args.dx), planes,
                     sizes.in_channels, size);
    });
  });
  return true;
}
#endif

}  // namespace

void unfold(const DeviceContext& context, const UnfoldArgs& args) {
  DispatchFloat(args.dtype, "unfold", [&]<typename T>() { UnfoldKernel<T>(context, args); });
}

void fold(const DeviceContext& context, const FoldArgs& args) {
  DispatchFloat(args.y_dtype, "fold", [&]<typename T>() { FoldKernel<T>(context, args); });
}

void conv_forward(const DeviceContext& context, const ConvForwardArgs& args) {
#ifdef APOGEE_USE_ONEDNN
  if (args.sizes.batch > 0 && TryConvForwardOneDnn(context, args)) return;
#endif
  ConvForwardByProducts(context, args);
}

void conv_backward_input(const DeviceContext& context, const ConvBackwardInputArgs& args) {
#ifdef APOGEE_USE_ONEDNN
  if (args.sizes.batch > 0 && TryTransposedOneDnn(context, args)) return;
#endif
  ConvBackwardInputByProducts(context, args);
}

void conv_backward_weight(const DeviceContext& context, const ConvBackwardWeightArgs& args) {
#ifdef APOGEE_USE_ONEDNN
  if (args.sizes.batch > 0 && TryConvBackwardWeightOneDnn(context, args)) return;
#endif
  ConvBackwardWeightByProducts(context, args);
}

}  // namespace apogee::cpu
