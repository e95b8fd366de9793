// SPDX-License-Identifier: Apache-2.0

// Loops over elements, in vectors of 16 bytes if the pointers allow it. Private to tensor/cuda.
//
//   ForEachVector<kWidth<T>>(context, n, IsAligned16(x, y), [=] __device__(int64_t i, auto width) {
//     auto values = LoadVector<width.value>(x + i);        // elements [i, i + width)
//     for (T& value : values.at) value = Cast<T>(2 * Load(&value));
//     StoreVector(y + i, values);
//   });
//
// An element is computed by the same expression in a vector and alone, so the address of a tensor
// does not change its bits.
#ifndef APOGEE_TENSOR_CUDA_DEVICE_VECTOR_LOOP_CUH_
#define APOGEE_TENSOR_CUDA_DEVICE_VECTOR_LOOP_CUH_

#include <type_traits>

#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"

namespace apogee::cuda {

// The number of neighbouring elements that a thread takes: 16 bytes of the widest of the types.
template <typename... Ts>
inline constexpr int kWidth = 16 / static_cast<int>(std::max({sizeof(Ts)...}));

template <int kCount, typename Fn>
__global__ void VectorLoopKernel(int64_t n, int64_t vectors, Fn fn) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t v = first; v < vectors; v += step) {
    fn(v * kCount, std::integral_constant<int, kCount>());
  }
  for (int64_t i = vectors * kCount + first; i < n; i += step) {
    fn(i, std::integral_constant<int, 1>());
  }
}

template <int kCount, typename Y, typename Fn, typename... Xs>
__device__ __forceinline__ void MapVector(Y* y, const Fn& fn, const Vector<Xs, kCount>&... x) {
  Vector<Y, kCount> result;
#pragma unroll
  for (int k = 0; k < kCount; ++k) result.at[k] = Cast<Y>(fn(Load(x.at + k)...));
  StoreVector(y, result);
}

template <int kCount, typename Y, typename Fn, typename... Xs>
__global__ void MapKernel(int64_t n, int64_t vectors, Y* y, Fn fn, const Xs*... x) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t v = first; v < vectors; v += step) {
    MapVector<kCount>(y + v * kCount, fn, LoadVector<kCount>(x + v * kCount)...);
  }
  for (int64_t i = vectors * kCount + first; i < n; i += step) {
    MapVector<1>(y + i, fn, LoadVector<1>(x + i)...);
  }
}

// The grid of a vector loop.
template <int kCount>
Grid VectorGrid(const DeviceContext& context, int64_t n, int64_t vectors) {
  return {.blocks = {GridBlocks(context, std::max(vectors, n - vectors * kCount), 256)}};
}

// Calls fn(i, width) on the GPU, in no order, so that each element of [0, n) is in exactly one
// [i, i + width). width is an integral_constant. If `aligned`, it is kCount with i a multiple of
// kCount, and 1 for the elements after the last vector; else it is 1.
template <int kCount, typename Fn>
void ForEachVector(const DeviceContext& context, int64_t n, bool aligned, const Fn& fn) {
  if (n <= 0) return;
  const int64_t vectors = aligned ? n / kCount : 0;
  Launch(context, VectorGrid<kCount>(context, n, vectors), &VectorLoopKernel<kCount, Fn>, n,
         vectors, fn);
}

// y[i] = fn(x[i]...). The x[i] are loaded as their compute types, and y[i] is rounded once. y may
// be one of the x.
template <typename Y, typename Fn, typename... Xs>
void MapVectors(const DeviceContext& context, int64_t n, Y* y, const Fn& fn, const Xs*... x) {
  if (n <= 0) return;
  constexpr int kCount = kWidth<Y, Xs...>;
  const int64_t vectors = IsAligned16(y, x...) ? n / kCount : 0;
  Launch(context, VectorGrid<kCount>(context, n, vectors), &MapKernel<kCount, Y, Fn, Xs...>, n,
         vectors, y, fn, x...);
}

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_DEVICE_VECTOR_LOOP_CUH_
