// SPDX-License-Identifier: Apache-2.0

// Packs: the few elements that a thread works on at once. A kernel's arithmetic is written for a
// pack. The elements of a pack are in one of two places: if all pointers are aligned, next to each
// other, so they are loaded as vectors; otherwise a block's width apart. Private to optim/cuda.
//
//   ForEachPack<4>(begin, end, AreAligned(x, y), [&](const auto& at) {
//     Pack<float, 4> x = at.template Load<float>(x_pointer);      // from f32
//     for (float& value : x.at) value *= 2;
//     at.Store(y_pointer, x);                                     // rounded to y's type
//   });
//
// Load from all tensors before computing, and load the gradient last: it is converted as it is
// loaded, and the conversion waits for memory.
#ifndef APOGEE_OPTIM_CUDA_DEVICE_PACKS_CUH_
#define APOGEE_OPTIM_CUDA_DEVICE_PACKS_CUH_

#include "apogee/optim/cuda/device/tile_list.cuh"
#include "apogee/tensor/cuda/device/device.cuh"

namespace apogee::optim::cuda {

using apogee::cuda::Cast;

template <typename C, int kCount>
struct Pack {
  C at[kCount];
};

// Elements [i, i + kCount).
template <int kCount>
struct Neighbours {
  int64_t i;

  __device__ bool Has(int /*k*/) const { return true; }
  __device__ int64_t Index(int k) const { return i + k; }
  template <typename C, typename T>
  __device__ Pack<C, kCount> Load(const T* x) const {
    constexpr int kWidth = std::min(kCount, apogee::cuda::kVectorWidth<T>);
    using Vector = apogee::cuda::Vector<T, kWidth>;
    APOGEE_CHECK_ALIGNED(x + i, Vector);
    const Vector* from = reinterpret_cast<const Vector*>(x + i);
    Vector vectors[kCount / kWidth];
#pragma unroll
    for (int v = 0; v < kCount / kWidth; ++v) vectors[v] = from[v];
    Pack<C, kCount> pack;
#pragma unroll
    for (int k = 0; k < kCount; ++k) pack.at[k] = Cast<C>(vectors[k / kWidth].at[k % kWidth]);
    return pack;
  }
  template <typename T, typename C>
  __device__ void Store(T* y, const Pack<C, kCount>& pack) const {
    constexpr int kWidth = std::min(kCount, apogee::cuda::kVectorWidth<T>);
    using Vector = apogee::cuda::Vector<T, kWidth>;
    APOGEE_CHECK_ALIGNED(y + i, Vector);
    Vector* to = reinterpret_cast<Vector*>(y + i);
#pragma unroll
    for (int v = 0; v < kCount / kWidth; ++v) {
      Vector vector;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) vector.at[k] = Cast<T>(pack.at[v * kWidth + k]);
      to[v] = vector;
    }
  }
};

// Elements i, i + kTileThreads, ... below `end`. Elements from `end` on load as 0.
template <int kCount>
struct Spread {
  int64_t i, end;

  __device__ bool Has(int k) const { return Index(k) < end; }
  __device__ int64_t Index(int k) const { return i + int64_t{k} * kTileThreads; }
  template <typename C, typename T>
  __device__ Pack<C, kCount> Load(const T* x) const {
    Pack<C, kCount> pack;
#pragma unroll
    for (int k = 0; k < kCount; ++k) pack.at[k] = Has(k) ? Cast<C>(x[Index(k)]) : C(0);
    return pack;
  }
  template <typename T, typename C>
  __device__ void Store(T* y, const Pack<C, kCount>& pack) const {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (Has(k)) y[Index(k)] = Cast<T>(pack.at[k]);
    }
  }
};

// Whether vectors can be loaded from all pointers, from elements whose index is a multiple of 16
// on. A null pointer counts as aligned.
template <typename... Pointers>
__device__ __forceinline__ bool AreAligned(const Pointers*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) | ... | uintptr_t{0}) & 15) == 0;
}

// Calls fn(at) for packs that have every element of [begin, end) once. All kTileThreads threads of
// the block must call it.
template <int kCount, typename Fn>
__device__ __forceinline__ void ForEachPack(int64_t begin, int64_t end, bool aligned,
                                            const Fn& fn) {
  constexpr int64_t kStep = int64_t{kTileThreads} * kCount;
  const int64_t thread = threadIdx.x;
  int64_t rest = begin;
  if (aligned) {
    rest = end - (end - begin) % kCount;
    for (int64_t i = begin + thread * kCount; i < rest; i += kStep) fn(Neighbours<kCount>{i});
  }
  for (int64_t i = rest + thread; i < end; i += kStep) fn(Spread<kCount>{i, end});
}

// Loads as f32 or f64 from a tensor of any floating dtype.
template <typename C, typename At>
__device__ __forceinline__ auto LoadAs(const At& at, const void* x, DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return at.template Load<C>(static_cast<const BFloat16*>(x));
    case DType::kF16:
      return at.template Load<C>(static_cast<const Float16*>(x));
    case DType::kF64:
      return at.template Load<C>(static_cast<const double*>(x));
    default:
      return at.template Load<C>(static_cast<const float*>(x));
  }
}
// Stores with rounding to a tensor of any floating dtype.
template <typename At, typename C, int kCount>
__device__ __forceinline__ void StoreAs(const At& at, void* y, DType dtype,
                                        const Pack<C, kCount>& pack) {
  switch (dtype) {
    case DType::kBF16:
      return at.Store(static_cast<BFloat16*>(y), pack);
    case DType::kF16:
      return at.Store(static_cast<Float16*>(y), pack);
    case DType::kF64:
      return at.Store(static_cast<double*>(y), pack);
    default:
      return at.Store(static_cast<float*>(y), pack);
  }
}

}  // namespace apogee::optim::cuda

#endif  // APOGEE_OPTIM_CUDA_DEVICE_PACKS_CUH_
