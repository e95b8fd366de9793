// SPDX-License-Identifier: Apache-2.0

// Rows that a kernel reads several times: a thread's first kHeld vectors stay in registers, the
// rest of a longer row is read again. Private to the CUDA folders' .cu files.
//
//   const HeldRow<T, kWidth, kTeam> row(x + r * cols, cols);
//   row.ForEach([&]<int n>(const Vector<T, n>& v, int64_t i) {   // as RowPart::ForEach
//     for (const T& value : v.at) sum += Load(&value);
//   });
#ifndef APOGEE_TENSOR_CUDA_ATTENTION_HELD_ROW_CUH_
#define APOGEE_TENSOR_CUDA_ATTENTION_HELD_ROW_CUH_

#include "apogee/tensor/cuda/device/rows.cuh"

namespace apogee::cuda {

// The number of vectors that a thread holds. For a warp it covers every row that DispatchRows gives
// to warps. For a block it is less: the more registers a block takes, the fewer blocks run at a
// time.
template <int kTeam>
inline constexpr int kHeldVectors = kTeam == kWarp ? 8 : 4;

template <typename T, int kWidth, int kTeam, int kHeld = kHeldVectors<kTeam>>
class HeldRow {
 public:
  __device__ __forceinline__ HeldRow(const T* row, int64_t cols) : part_(row, cols) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (part_.Has(k)) held_[k] = LoadVector<kWidth>(row + part_.IndexOf(k));
    }
  }
  template <typename Fn>
  __device__ __forceinline__ void ForEach(const Fn& fn) const {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (part_.Has(k)) fn(held_[k], part_.IndexOf(k));
    }
    part_.ForVectorsFrom(kHeld, fn);
    part_.ForSingles(fn);
  }

 private:
  RowPart<T, kWidth, kTeam> part_;
  Vector<T, kWidth> held_[kHeld];
};

// Two rows with the same offset to multiples of 16 bytes (LieAlike). ForEach calls fn(vector of a,
// vector of b, index of their first element).
template <typename T, int kWidth, int kTeam, int kHeld = kHeldVectors<kTeam>>
class HeldPair {
 public:
  __device__ __forceinline__ HeldPair(const T* a, const T* b, int64_t cols)
      : part_(a, cols), b_(b) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (!part_.Has(k)) continue;
      held_a_[k] = LoadVector<kWidth>(a + part_.IndexOf(k));
      held_b_[k] = LoadVector<kWidth>(b + part_.IndexOf(k));
    }
  }
  template <typename Fn>
  __device__ __forceinline__ void ForEach(const Fn& fn) const {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (!part_.Has(k)) continue;
      Vector<T, kWidth> a = held_a_[k], b = held_b_[k];
      ForgetConversions(a);
      ForgetConversions(b);
      fn(a, b, part_.IndexOf(k));
    }
    const auto with_b = [&]<int n>(const Vector<T, n>& a, int64_t i) {
      fn(a, LoadVector<n>(b_ + i), i);
    };
    part_.ForVectorsFrom(kHeld, with_b);
    part_.ForSingles(with_b);
  }

 private:
  RowPart<T, kWidth, kTeam> part_;
  const T* b_;
  Vector<T, kWidth> held_a_[kHeld], held_b_[kHeld];
};

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_ATTENTION_HELD_ROW_CUH_
