// SPDX-License-Identifier: Apache-2.0

// fill and scale_add: loops bound by memory, in vectors.
#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/device/vector_loop.cuh"
#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

template <typename T>
void FillFromDevice(const DeviceContext& context, const FillArgs& args) {
  const double value = args.value;
  const DeviceScalar factor = args.factor;
  MapVectors(context, args.n, static_cast<T*>(args.y),
             [=] __device__() { return Cast<T>(value * ReadScalar(factor)); });
}

template <typename T>
void Fill(const DeviceContext& context, const FillArgs& args) {
  if (args.factor.value != nullptr) return FillFromDevice<T>(context, args);
  T value;
  if constexpr (std::is_integral_v<T> || sizeof(T) > 2) {
    value = static_cast<T>(args.value);
  } else {
    value = static_cast<T>(static_cast<float>(args.value));
  }
  MapVectors(context, args.n, static_cast<T*>(args.y), [=] __device__() { return value; });
}

template <typename X, typename Y>
void ScaleAdd(const DeviceContext& context, const ScaleAddArgs& args) {
  using C =
      std::conditional_t<std::is_same_v<X, double> || std::is_same_v<Y, double>, double, float>;
  const X* x = static_cast<const X*>(args.x);
  Y* y = static_cast<Y*>(args.y);
  const C alpha = static_cast<C>(args.alpha), beta = static_cast<C>(args.beta);
  if (args.beta == 0) {
    MapVectors(
        context, args.n, y, [=] __device__(ComputeType<X> from) { return alpha * C(from); }, x);
  } else {
    MapVectors(
        context, args.n, y,
        [=] __device__(ComputeType<X> from, ComputeType<Y> to) {
          return alpha * C(from) + beta * C(to);
        },
        x, y);
  }
}

}  // namespace

void fill(const DeviceContext& context, const FillArgs& args) {
  DispatchAny(args.dtype, "fill", [&]<typename T>() { Fill<T>(context, args); });
}

void scale_add(const DeviceContext& context, const ScaleAddArgs& args) {
  DispatchFloat(args.x_dtype, "scale_add", [&]<typename X>() {
    DispatchFloat(args.y_dtype, "scale_add", [&]<typename Y>() { ScaleAdd<X, Y>(context, args); });
  });
}

}  // namespace apogee::cuda
