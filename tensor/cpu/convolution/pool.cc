// SPDX-License-Identifier: Apache-2.0

// Pools over the windows of each plane.
#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/kernels/window_functions.h"

namespace apogee::cpu {
namespace {

// Calls fn(plane, row, col) for every place of `planes` images of rows × cols, in ascending order
// within each thread's range.
template <typename Fn>
void ForPlaces(const DeviceContext& context, int64_t planes, int64_t rows, int64_t cols,
               int64_t cost, const Fn& fn) {
  ForRows(context, planes * rows, cols * cost, [=](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      for (int64_t col = 0; col < cols; ++col) fn(at / rows, at % rows, col);
    }
  });
}

}  // namespace

void max_pool_forward(const DeviceContext& context, const MaxPoolForwardArgs& args) {
  DispatchFloat(args.dtype, "max_pool", [&]<typename T>() {
    const T* x = static_cast<const T*>(args.x);
    T* y = static_cast<T*>(args.y);
    int64_t* index = args.index;
    const Window w = args.window;
    ForPlaces(context, args.planes, w.out[0], w.out[1], w.kernel_size(),
              [=](int64_t plane, int64_t oh, int64_t ow) {
                const T* image = x + plane * w.in_size();
                const int64_t at = window::MaxPlace(image, w, oh, ow);
                const int64_t to = (plane * w.out[0] + oh) * w.out[1] + ow;
                index[to] = at;
                y[to] = image[at];
              });
  });
}

void average_pool_forward(const DeviceContext& context, const AveragePoolForwardArgs& args) {
  DispatchFloat(args.dtype, "average_pool", [&]<typename T>() {
    const T* x = static_cast<const T*>(args.x);
    T* y = static_cast<T*>(args.y);
    const Window w = args.window;
    const bool count_padding = args.count_padding;
    ForPlaces(context, args.planes, w.out[0], w.out[1], w.kernel_size(),
              [=](int64_t plane, int64_t oh, int64_t ow) {
                y[(plane * w.out[0] + oh) * w.out[1] + ow] =
                    Cast<T>(window::Average(x + plane * w.in_size(), w, count_padding, oh, ow));
              });
  });
}

void average_pool_backward(const DeviceContext& context, const AveragePoolBackwardArgs& args) {
  DispatchFloat(args.dtype, "average_pool_backward", [&]<typename T>() {
    const T* dy = static_cast<const T*>(args.dy);
    T* dx = static_cast<T*>(args.dx);
    const Window w = args.window;
    const bool count_padding = args.count_padding;
    ForPlaces(context, args.planes, w.in[0], w.in[1], w.kernel_size(),
              [=](int64_t plane, int64_t row, int64_t col) {
                dx[(plane * w.in[0] + row) * w.in[1] + col] = Cast<T>(
                    window::AverageGradient(dy + plane * w.out_size(), w, count_padding, row, col));
              });
  });
}

}  // namespace apogee::cpu
