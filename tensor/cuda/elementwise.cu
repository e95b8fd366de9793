// SPDX-License-Identifier: Apache-2.0

// fill, binary and scale_add: loops bound by memory, in vectors.
#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/divisor.cuh"
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

template <BinaryOp kOp, typename C>
__device__ __forceinline__ C Apply(C a, C b) {
  if constexpr (kOp == BinaryOp::kAdd) return a + b;
  if constexpr (kOp == BinaryOp::kSub) return a - b;
  if constexpr (kOp == BinaryOp::kMul) return a * b;
  if constexpr (kOp == BinaryOp::kDiv) return a / b;
}

// For a b that is repeated over a. Uses vectors if each lies within one repetition.
template <typename T, BinaryOp kOp>
void BinaryRepeated(const DeviceContext& context, const BinaryArgs& args) {
  const T* a = static_cast<const T*>(args.a);
  const T* b = static_cast<const T*>(args.b);
  T* out = static_cast<T*>(args.out);
  const WideDivisor period(args.b_period, args.n);
  const bool vectors = IsAligned16(a, b, out) && args.b_period % kWidth<T> == 0;
  ForEachVector<kWidth<T>>(context, args.n, vectors, [=] __device__(int64_t i, auto width) {
    constexpr int kCount = decltype(width)::value;
    Vector<T, kCount> values = ReadVector<kCount>(a + i);
    const Vector<T, kCount> others = ReadVector<kCount>(b + period.Remainder(i));
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      values.at[k] = Cast<T>(Apply<kOp>(Load(values.at + k), Load(others.at + k)));
    }
    WriteVector(out + i, values);
  });
}

template <typename T, BinaryOp kOp>
void Binary(const DeviceContext& context, const BinaryArgs& args) {
  using C = ComputeType<T>;
  const T* a = static_cast<const T*>(args.a);
  const T* b = static_cast<const T*>(args.b);
  T* out = static_cast<T*>(args.out);
  if (args.b_period == args.n) {
    MapVectors(
        context, args.n, out, [=] __device__(C x, C y) { return Apply<kOp>(x, y); }, a, b);
  } else if (args.b_period == 1) {
    MapVectors(
        context, args.n, out, [=] __device__(C x) { return Apply<kOp>(x, Load(b)); }, a);
  } else {
    BinaryRepeated<T, kOp>(context, args);
  }
}

template <typename T>
void BinaryOf(const DeviceContext& context, const BinaryArgs& args) {
  switch (args.op) {
    case BinaryOp::kAdd:
      return Binary<T, BinaryOp::kAdd>(context, args);
    case BinaryOp::kSub:
      return Binary<T, BinaryOp::kSub>(context, args);
    case BinaryOp::kMul:
      return Binary<T, BinaryOp::kMul>(context, args);
    case BinaryOp::kDiv:
      return Binary<T, BinaryOp::kDiv>(context, args);
  }
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

void binary(const DeviceContext& context, const BinaryArgs& args) {
  DispatchFloat(args.dtype, "binary", [&]<typename T>() { BinaryOf<T>(context, args); });
}

void scale_add(const DeviceContext& context, const ScaleAddArgs& args) {
  DispatchFloat(args.x_dtype, "scale_add", [&]<typename X>() {
    DispatchFloat(args.y_dtype, "scale_add", [&]<typename Y>() { ScaleAdd<X, Y>(context, args); });
  });
}

}  // namespace apogee::cuda
