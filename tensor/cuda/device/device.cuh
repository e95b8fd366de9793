// SPDX-License-Identifier: Apache-2.0

// Device functions for kernels: loads and stores that convert, vectors of elements, reductions over
// a warp and a block, dynamic shared memory. Private to the CUDA folders' .cu files.
//
//   const float x = Load(args_x + i);                 // from f32, bf16 or f16; double from f64
//   y[i] = Cast<T>(x);
//   const float total = BlockReduce<256>(x, Sum());   // the same value in every thread
//
// Every reduction has a fixed order: the same bits every run.
#ifndef APOGEE_TENSOR_CUDA_DEVICE_DEVICE_CUH_
#define APOGEE_TENSOR_CUDA_DEVICE_DEVICE_CUH_

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <type_traits>

#include "apogee/core/dtype.h"

namespace apogee::cuda {

template <typename T>
__device__ __forceinline__ ComputeType<T> Load(const T* x) {
  return static_cast<ComputeType<T>>(*x);
}

// Conversions between f64 and a 16-bit type go through f32, as on the CPU. A conversion to the same
// type keeps the bits.
template <typename To, typename From>
__device__ __forceinline__ To Cast(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (sizeof(To) == 2 || sizeof(From) == 2) {
    return static_cast<To>(static_cast<float>(x));
  } else {
    return static_cast<To>(x);
  }
}

// kCount neighbouring elements that are loaded and stored at once: at most 16 bytes.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T at[kCount];
};
// Stands before elements from x on are read or written as the type that follows. x must be a
// multiple of its alignment; the GPU in software checks it. A macro, because with one more
// nested function nvcc unrolled less, and norms and 8-bit Adam spilled.
#ifdef APOGEE_CUDA_EMULATION
#define APOGEE_CHECK_ALIGNED(x, ...) cuda_emulation::CheckAligned(x, alignof(__VA_ARGS__))
#else
#define APOGEE_CHECK_ALIGNED(x, ...) static_cast<void>(0)
#endif
template <int kCount, typename T>
__device__ __forceinline__ Vector<T, kCount> LoadVector(const T* x) {
  APOGEE_CHECK_ALIGNED(x, Vector<T, kCount>);
  return *reinterpret_cast<const Vector<T, kCount>*>(x);
}
template <int kCount, typename T>
__device__ __forceinline__ void StoreVector(T* y, const Vector<T, kCount>& values) {
  APOGEE_CHECK_ALIGNED(y, Vector<T, kCount>);
  *reinterpret_cast<Vector<T, kCount>*>(y) = values;
}
template <typename T>
inline constexpr int kVectorWidth = 16 / sizeof(T);
// Whether all pointers can be read in vectors of 16 bytes.
template <typename... Pointers>
inline bool IsAligned16(const Pointers*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

// Makes the compiler forget what it has computed from a vector of 16-bit elements. Between two
// passes over elements in registers it would otherwise keep them as f32, in twice the registers,
// and spill some to memory. It changes no value and costs no instruction.
template <typename T, int kCount>
__device__ __forceinline__ void ForgetConversions([[maybe_unused]] Vector<T, kCount>& values) {
#ifndef APOGEE_CUDA_EMULATION
  if constexpr (sizeof(T) == 2 && kCount % 2 == 0) {
    struct Words {
      uint32_t at[kCount / 2];
    };
    Words words = std::bit_cast<Words>(values);
#pragma unroll
    for (uint32_t& word : words.at) asm volatile("" : "+r"(word));
    values = std::bit_cast<Vector<T, kCount>>(words);
  } else if constexpr (sizeof(T) == 2 && kCount == 1) {
    uint16_t bits = values.at[0].bits;
    asm volatile("" : "+h"(bits));
    values.at[0].bits = bits;
  }
#endif
}

struct Sum {
  template <typename C>
  __device__ C operator()(C a, C b) const {
    return a + b;
  }
  template <typename C>
  static __device__ C Identity() {
    return C(0);
  }
};
// The maximum; NaN if any operand is NaN.
struct Max {
  template <typename C>
  __device__ C operator()(C a, C b) const {
    return a != a || a > b ? a : b;
  }
  template <typename C>
  static __device__ C Identity() {
    return -C(__builtin_huge_val());
  }
};

inline constexpr int kWarp = 32;
inline constexpr unsigned kFullWarp = 0xffffffffu;

// Reduces over the warp's 32 lanes. All of them must call; every lane gets the result.
template <typename C, typename Op>
__device__ __forceinline__ C WarpReduce(C x, Op op) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x = op(x, __shfl_xor_sync(kFullWarp, x, offset));
  }
  return x;
}

// Reduces over a block of kThreads = blockDim.x threads, a multiple of 32. All of them must call;
// every thread gets the result. Synchronises the block.
template <int kThreads, typename C, typename Op>
__device__ __forceinline__ C BlockReduce(C x, Op op) {
  static_assert(kThreads % kWarp == 0 && kThreads <= 1024);
  constexpr int kWarps = kThreads / kWarp;
  __shared__ C parts[kWarps];
  x = WarpReduce(x, op);
  if constexpr (kWarps > 1) {
    if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = x;
    __syncthreads();
    x = threadIdx.x % kWarp < kWarps ? parts[threadIdx.x % kWarp] : Op::template Identity<C>();
    x = WarpReduce(x, op);
    __syncthreads();  // `parts` may be used again
  }
  return x;
}

// The block's dynamic shared memory: Grid::shared_bytes, aligned to 16 bytes.
template <typename T>
__device__ __forceinline__ T* DynamicShared() {
#ifdef APOGEE_CUDA_EMULATION
  return static_cast<T*>(cuda_emulation::DynamicSharedMemory());
#else
  extern __shared__ __align__(16) unsigned char apogee_dynamic_shared[];
  return reinterpret_cast<T*>(apogee_dynamic_shared);
#endif
}

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_DEVICE_DEVICE_CUH_
