// SPDX-License-Identifier: Apache-2.0

// float8_encode, float8_decode and float8_scale: the arithmetic of core/float8.h, with the CPU's
// bits.
#include <bit>

#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/device/magnitude_bits.cuh"
#include "apogee/tensor/cuda/device/vector_loop.cuh"
#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

template <typename X, typename Y>
void Encode(const DeviceContext& context, const Float8EncodeArgs& args) {
  using C = ComputeType<X>;
  const DeviceScalar scale = args.scale;
  const Float8Overflow overflow = args.overflow;
  MapVectors(
      context, args.n, static_cast<Y*>(args.y),
      [=] __device__(C x) { return Y(x * static_cast<C>(ReadScalar(scale)), overflow); },
      static_cast<const X*>(args.x));
}

// C: the compute type, in which a power of two and its inverse are exact.
template <typename C, typename X, typename Y>
void Decode(const DeviceContext& context, const Float8DecodeArgs& args) {
  const auto* const x = static_cast<const X*>(args.x);
  Y* const y = static_cast<Y*>(args.y);
  const DeviceScalar scale = args.scale;
  ForEachVector<kWidth<X, Y>>(context, args.n, IsAligned16(x, y),
                              [=] __device__(int64_t i, auto width) {
                                const auto values = LoadVector<decltype(width)::value>(x + i);
                                const C inverse = static_cast<C>(1 / ReadScalar(scale));
                                Vector<Y, decltype(width)::value> result;
#pragma unroll
                                for (int k = 0; k < width; ++k) {
                                  result.at[k] = Cast<Y>(static_cast<C>(values.at[k]) * inverse);
                                }
                                StoreVector(y + i, result);
                              });
}

// *largest = the largest magnitude's bits. In their order NaN comes last.
template <typename X>
__global__ void __launch_bounds__(256)
    LargestKernel(const X* x, int64_t n, MagnitudeBits<ComputeType<X>>* largest) {
  using C = ComputeType<X>;
  MagnitudeBits<C> here = 0;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    here = MaxBits()(here, BitsOfMagnitude(Load(x + i)));
  }
  here = WarpReduce(here, MaxBits());
  if (threadIdx.x % kWarp == 0) atomicMax(largest, here);
}

template <typename X, typename Stored>
void Scale(const DeviceContext& context, const Float8ScaleArgs& args) {
  using C = ComputeType<X>;
  // The scale's own memory holds the largest magnitude until the scale is known.
  auto* const largest = static_cast<MagnitudeBits<C>*>(args.scale);
  ForEach(context, 1, [=] __device__(int64_t) { *largest = 0; });
  if (args.n > 0) {
    Launch(context, {.blocks = {GridBlocks(context, args.n, 256)}}, &LargestKernel<X>,
           static_cast<const X*>(args.x), args.n, largest);
  }
  ForEach(context, 1, [=] __device__(int64_t) {
    *largest = std::bit_cast<MagnitudeBits<C>>(Float8Scale<Stored>(std::bit_cast<C>(*largest)));
  });
}

}  // namespace

void float8_encode(const DeviceContext& context, const Float8EncodeArgs& args) {
  DispatchFloat(args.x_dtype, "float8_encode", [&]<typename X>() {
    DispatchFloat8(args.y_dtype, "float8_encode",
                   [&]<typename Y>() { Encode<X, Y>(context, args); });
  });
}

void float8_decode(const DeviceContext& context, const Float8DecodeArgs& args) {
  DispatchFloat8(args.x_dtype, "float8_decode", [&]<typename X>() {
    DispatchFloat(args.y_dtype, "float8_decode", [&]<typename Y>() {
      args.scale.dtype == DType::kF64 ? Decode<double, X, Y>(context, args)
                                      : Decode<float, X, Y>(context, args);
    });
  });
}

void float8_scale(const DeviceContext& context, const Float8ScaleArgs& args) {
  DispatchFloat(args.x_dtype, "float8_scale", [&]<typename X>() {
    DispatchFloat8(args.stored, "float8_scale",
                   [&]<typename Stored>() { Scale<X, Stored>(context, args); });
  });
}

}  // namespace apogee::cuda
