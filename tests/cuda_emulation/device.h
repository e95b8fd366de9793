// SPDX-License-Identifier: Apache-2.0

// The built-in variables and functions of CUDA C++ for .cu files that the host compiler compiles,
// carried out by fibers. A build with APOGEE_WITH_CUDA=EMULATED includes it before every .cu
// source.
//
// A launch runs on the stream's thread, block after block. The threads of a block are fibers of it
// that switch only at barriers and at exchanges within a warp. So a kernel's arithmetic, indices,
// barriers and order of queued work are checked without a GPU. Every access of a kernel to memory
// is noted, so that races show although nothing runs at the same time (races.h). Not checked:
// memory orders (fences order nothing), and speed.
//
// If some thread never reaches a barrier, or the lanes of a warp ask for different exchanges, the
// process ends with a message that names the block and its threads.
#ifndef APOGEE_TESTS_CUDA_EMULATION_DEVICE_H_
#define APOGEE_TESTS_CUDA_EMULATION_DEVICE_H_

#include <cuda_runtime.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#define APOGEE_CUDA_EMULATION 1

namespace cuda_emulation {

// The indices and sizes that the running fiber sees: threadIdx, blockIdx, blockDim, gridDim.
struct Position {
  uint3 thread, block;
  dim3 threads, blocks;
};
const Position& Here();
void* DynamicSharedMemory();
// Waits until every thread of the block that has not returned is here.
void BlockBarrier();
// Gives `bytes` (at most 16) of this lane to the other lanes, and waits until all lanes of `mask`
// have given theirs. Returns the lanes' bytes, for ReadLane; sets `lane` to this lane's number.
const void* WarpExchange(unsigned mask, const void* mine, size_t bytes, int& lane);
inline constexpr size_t kLaneBytes = 16;

// Ends the process with a message that names the kernel.
[[noreturn]] void Misaligned(const void* address, size_t alignment);
// For addresses at which a kernel reads or writes several elements at once.
inline void CheckAligned(const void* address, size_t alignment) {
  if (reinterpret_cast<uintptr_t>(address) % alignment != 0) Misaligned(address, alignment);
}

// Queues a launch on its stream. `thread` is the body that every thread runs; it calls `kernel`.
cudaError_t Enqueue(const cudaLaunchConfig_t& config, const void* kernel,
                    std::function<void()> thread);

template <typename T>
T ReadLane(const void* lanes, int lane) {
  T value;
  std::memcpy(&value, static_cast<const char*>(lanes) + static_cast<size_t>(lane) * kLaneBytes,
              sizeof(T));
  return value;
}

// The value of the lane that `source` names for this lane; this lane's own value if that lane is
// outside of the segment of `width` lanes.
template <typename T, typename Source>
T Shuffle(unsigned mask, T value, int width, const Source& source) {
  static_assert(sizeof(T) <= kLaneBytes);
  int lane = 0;
  const void* lanes = WarpExchange(mask, &value, sizeof(T), lane);
  const int first = lane / width * width;
  const int from = source(lane - first);
  return from < 0 || from >= width ? value : ReadLane<T>(lanes, first + from);
}

}  // namespace cuda_emulation

// The built-in variables. They are no macros, because cudaLaunchConfig_t has members with their
// names.
namespace cuda_emulation {
template <auto kMember, auto kCoordinate>
struct BuiltIn {
  operator unsigned() const { return (Here().*kMember).*kCoordinate; }
};
template <auto kMember, typename V>
struct BuiltInVector {
  BuiltIn<kMember, &V::x> x;
  BuiltIn<kMember, &V::y> y;
  BuiltIn<kMember, &V::z> z;
};
}  // namespace cuda_emulation
inline constexpr cuda_emulation::BuiltInVector<&cuda_emulation::Position::thread, uint3> threadIdx;
inline constexpr cuda_emulation::BuiltInVector<&cuda_emulation::Position::block, uint3> blockIdx;
inline constexpr cuda_emulation::BuiltInVector<&cuda_emulation::Position::threads, dim3> blockDim;
inline constexpr cuda_emulation::BuiltInVector<&cuda_emulation::Position::blocks, dim3> gridDim;

// All fibers of a block run on one thread, which runs one block at a time. So a thread_local is the
// block's shared memory. constinit: no guard variable, which threads would share, too.
#undef __shared__
#define __shared__ static constinit thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __global__
#define __global__
#undef __device__
#define __device__
#undef __host__
#define __host__
#undef __constant__
#define __constant__
// Makes the parameter a reference, so that all threads read the launch's one copy. This works
// because the macro stands after the parameter's type.
#undef __grid_constant__
#define __grid_constant__ &
#undef __forceinline__
#define __forceinline__ inline

inline void __syncthreads() { cuda_emulation::BlockBarrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  int lane = 0;
  const char nothing = 0;
  cuda_emulation::WarpExchange(mask, &nothing, 1, lane);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return cuda_emulation::Shuffle(mask, value, width, [=](int) { return source & (width - 1); });
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  return cuda_emulation::Shuffle(mask, value, width, [=](int lane) { return lane ^ bits; });
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return cuda_emulation::Shuffle(mask, value, width,
                                 [=](int lane) { return lane + static_cast<int>(delta); });
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return cuda_emulation::Shuffle(mask, value, width,
                                 [=](int lane) { return lane - static_cast<int>(delta); });
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  int lane = 0;
  const int mine = predicate != 0;
  const void* lanes = cuda_emulation::WarpExchange(mask, &mine, sizeof(mine), lane);
  unsigned result = 0;
  for (int l = 0; l < 32; ++l) {
    if ((mask >> l & 1u) != 0 && cuda_emulation::ReadLane<int>(lanes, l) != 0) result |= 1u << l;
  }
  return result;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}

// Atomic for the host, too: blocks of other streams may run at the same time.
template <typename T>
__attribute__((always_inline)) inline T atomicAdd(T* address, T value) {
  return std::atomic_ref<T>(*address).fetch_add(value);
}
template <typename T>
__attribute__((always_inline)) inline T atomicOr(T* address, T value) {
  return std::atomic_ref<T>(*address).fetch_or(value);
}
template <typename T>
__attribute__((always_inline)) inline T atomicExch(T* address, T value) {
  return std::atomic_ref<T>(*address).exchange(value);
}
template <typename T>
__attribute__((always_inline)) inline T atomicCAS(T* address, T compare, T value) {
  std::atomic_ref<T>(*address).compare_exchange_strong(compare, value);
  return compare;
}
template <typename T>
__attribute__((always_inline)) inline T atomicMax(T* address, T value) {
  std::atomic_ref<T> at(*address);
  T old = at.load();
  while (old < value && !at.compare_exchange_weak(old, value)) {
  }
  return old;
}

template <typename T>
T __ldg(const T* address) {
  return *address;
}
template <typename T>
T __ldcs(const T* address) {
  return *address;
}
template <typename T>
void __stcs(T* address, T value) {
  *address = value;
}

inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
// Whole turns are dropped first, which is exact.
inline void sincospi(double x, double* sine, double* cosine) {
  const double angle = M_PI * std::fmod(x, 2.0);
  *sine = std::sin(angle);
  *cosine = std::cos(angle);
}
inline void sincospif(float x, float* sine, float* cosine) {
  double s = 0, c = 0;
  sincospi(x, &s, &c);
  *sine = static_cast<float>(s);
  *cosine = static_cast<float>(c);
}
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(unsigned x) { return std::countl_zero(x); }
inline int __ffs(unsigned x) { return x == 0 ? 0 : std::countr_zero(x) + 1; }
inline void __trap() { __builtin_trap(); }

using std::max;
using std::min;

#include "async_copies.h"
#include "mma.h"

// CUDA's own template would pass untyped addresses to the driver.
#define cudaLaunchKernelEx LaunchEmulatedKernel
template <typename... Params, typename... Args>
cudaError_t LaunchEmulatedKernel(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                                 Args&&... args) {
  return cuda_emulation::Enqueue(
      *config, reinterpret_cast<const void*>(kernel),
      [kernel, arguments = std::tuple<std::remove_cvref_t<Params>...>(
                   std::forward<Args>(args)...)] { std::apply(kernel, arguments); });
}

#endif  // APOGEE_TESTS_CUDA_EMULATION_DEVICE_H_
