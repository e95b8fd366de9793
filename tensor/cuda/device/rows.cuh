// SPDX-License-Identifier: Apache-2.0

// Kernels over rows: the threads that work on a row, the elements of each thread, and reductions
// over them. Private to the CUDA folders' .cu files.
//
//   for (int64_t r = FirstRow<kTeam>(); r < rows; r += RowStep<kTeam>()) {
//     const RowPart<T, kWidth, kTeam> part(x + r * cols, cols);
//     C sum = 0;
//     part.ForEach([&]<int n>(const Vector<T, n>& v, int64_t i) {   // v: x[i] to x[i + n - 1]
//       for (const T& value : v.at) sum += Load(&value);
//     });
//     sum = TeamReduce<kTeam>(sum, Sum());
//   }
//
// A team works on one row. It is a warp (a block has eight) or a whole block; the choice depends
// only on the row's length, so a row's result does not depend on the number of rows. A row is read
// in vectors of 16 bytes, from the first address that is a multiple of 16; the elements before and
// after the vectors are read one by one. If the rows of several arrays have different offsets to
// multiples of 16 bytes, kWidth must be 1.
#ifndef APOGEE_TENSOR_CUDA_DEVICE_ROWS_CUH_
#define APOGEE_TENSOR_CUDA_DEVICE_ROWS_CUH_

#include <cstdint>

#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"

namespace apogee::cuda {

inline constexpr int kRowThreads = 256;  // per block

template <int kTeam>
inline Grid RowGrid(const DeviceContext& context, int64_t rows) {
  return {.blocks = {GridBlocks(context, rows, kRowThreads / kTeam)}, .threads = {kRowThreads}};
}
template <int kTeam>
__device__ __forceinline__ int64_t FirstRow() {
  return int64_t{blockIdx.x} * (kRowThreads / kTeam) + threadIdx.x / kTeam;
}
template <int kTeam>
__device__ __forceinline__ int64_t RowStep() {
  return int64_t{gridDim.x} * (kRowThreads / kTeam);
}
template <int kTeam>
__device__ __forceinline__ int TeamLane() {
  return static_cast<int>(threadIdx.x % kTeam);
}

// Reduces over a team. All its threads must call; every thread gets the result.
template <int kTeam, typename C, typename Op>
__device__ __forceinline__ C TeamReduce(C x, Op op) {
  static_assert(kTeam == kWarp || kTeam == kRowThreads);
  if constexpr (kTeam == kWarp) {
    return WarpReduce(x, op);
  } else {
    return BlockReduce<kTeam>(x, op);
  }
}

// Sums a and b over a team, with the barriers of one reduction.
template <int kTeam, typename C>
__device__ __forceinline__ void TeamSums(C& a, C& b) {
  a = WarpReduce(a, Sum());
  b = WarpReduce(b, Sum());
  if constexpr (kTeam > kWarp) {
    constexpr int kWarps = kTeam / kWarp;
    __shared__ C parts[2][kWarps];
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    if (lane == 0) {
      parts[0][threadIdx.x / kWarp] = a;
      parts[1][threadIdx.x / kWarp] = b;
    }
    __syncthreads();
    a = WarpReduce(lane < kWarps ? parts[0][lane] : C(0), Sum());
    b = WarpReduce(lane < kWarps ? parts[1][lane] : C(0), Sum());
    __syncthreads();  // `parts` may be used again
  }
}

// The elements of a row that belong to one thread of the team.
template <typename T, int kWidth, int kTeam>
class RowPart {
 public:
  __device__ __forceinline__ RowPart(const T* row, int64_t cols)
      : row_(row), cols_(cols), lane_(TeamLane<kTeam>()) {
    if constexpr (kWidth > 1) {
      const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % 16);
      head_ = min(cols, (16 - past) % 16 / static_cast<int64_t>(sizeof(T)));
    }
    vectors_ = (cols - head_) / kWidth;
  }

  // Calls fn(vector, index of its first element) for the thread's elements. fn may overwrite them:
  // no other thread reads them, and they are not read again.
  template <typename Fn>
  __device__ __forceinline__ void ForEach(const Fn& fn) const {
    ForSingles(fn);
    ForVectorsFrom(0, fn);
  }
  // As ForEach, but only for the elements that no vector covers.
  template <typename Fn>
  __device__ __forceinline__ void ForSingles(const Fn& fn) const {
    if constexpr (kWidth > 1) {
      if (lane_ < head_) fn(LoadVector<1>(row_ + lane_), int64_t{lane_});
      const int64_t tail = head_ + vectors_ * kWidth + lane_;
      if (tail < cols_) fn(LoadVector<1>(row_ + tail), tail);
    }
  }
  // As ForEach, but only for the thread's vectors after the first `skip`.
  template <typename Fn>
  __device__ __forceinline__ void ForVectorsFrom(int skip, const Fn& fn) const {
    constexpr int kAtOnce = 4;  // loads in flight
    int64_t v = lane_ + int64_t{skip} * kTeam;
    for (; v + (kAtOnce - 1) * kTeam < vectors_; v += kAtOnce * kTeam) {
      Vector<T, kWidth> loaded[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) loaded[k] = LoadVector<kWidth>(At(v + k * kTeam));
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) fn(loaded[k], Index(v + k * kTeam));
    }
    for (; v < vectors_; v += kTeam) fn(LoadVector<kWidth>(At(v)), Index(v));
  }

  // Whether the thread has a k-th vector, and the index of that vector's first element.
  __device__ __forceinline__ bool Has(int k) const { return lane_ + k * kTeam < vectors_; }
  __device__ __forceinline__ int64_t IndexOf(int k) const { return Index(lane_ + k * kTeam); }

 private:
  __device__ __forceinline__ int64_t Index(int64_t v) const { return head_ + v * kWidth; }
  __device__ __forceinline__ const T* At(int64_t v) const { return row_ + Index(v); }

  const T* row_;
  int64_t cols_, head_ = 0, vectors_;
  int lane_;
};

// A warp works on rows of at most this many bytes: eight vectors per thread.
inline constexpr int64_t kWarpRowBytes = 8 * 16 * kWarp;

// Calls fn.template operator()<kWidth, kTeam>() for rows of `cols` elements of type T. kWidth is 1
// unless `vectors`.
template <typename T, typename Fn>
void DispatchRows(int64_t cols, bool vectors, const Fn& fn) {
  constexpr int kWidth = kVectorWidth<T>;
  const bool short_rows = cols * static_cast<int64_t>(sizeof(T)) <= kWarpRowBytes;
  if (vectors) {
    short_rows ? fn.template operator()<kWidth, kWarp>()
               : fn.template operator()<kWidth, kRowThreads>();
  } else {
    short_rows ? fn.template operator()<1, kWarp>() : fn.template operator()<1, kRowThreads>();
  }
}

// Whether two arrays have the same offset to multiples of 16 bytes. If their rows have one length,
// all their rows do.
inline bool LieAlike(const void* a, const void* b) {
  return (reinterpret_cast<uintptr_t>(a) - reinterpret_cast<uintptr_t>(b)) % 16 == 0;
}

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_DEVICE_ROWS_CUH_
