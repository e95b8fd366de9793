// SPDX-License-Identifier: Apache-2.0

// Pools over the windows of each plane. A thread computes one place of a result.
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/kernels.h"
#include "apogee/tensor/kernels/pool_functions.h"

namespace apogee::cuda {
namespace {

template <typename Fn>
void ForPlaces(const DeviceContext& context, const Fn& fn, int64_t rows, int64_t cols) {
  ForEach(context, fn.args.planes * rows * cols, [=] __device__(int64_t at) {
    const int64_t row = at / cols;
    fn(row / rows, row % rows, at - row * cols);
  });
}

// Calls Fn<T>{args}(plane, row, column) for every place of the planes, of this size.
template <template <typename> typename Fn, typename Args>
void ForPlaces(const DeviceContext& context, const char* name, const Args& args,
               const int64_t (&size)[2]) {
  DispatchFloat(args.dtype, name,
                [&]<typename T>() { ForPlaces(context, Fn<T>{args}, size[0], size[1]); });
}

}  // namespace

void max_pool_forward(const DeviceContext& context, const MaxPoolForwardArgs& args) {
  ForPlaces<pool::Max>(context, "max_pool", args, args.window.out);
}

void average_pool_forward(const DeviceContext& context, const AveragePoolForwardArgs& args) {
  ForPlaces<pool::Average>(context, "average_pool", args, args.window.out);
}

void average_pool_backward(const DeviceContext& context, const AveragePoolBackwardArgs& args) {
  ForPlaces<pool::AverageGradient>(context, "average_pool_backward", args, args.window.in);
}

}  // namespace apogee::cuda
