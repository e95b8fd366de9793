// SPDX-License-Identifier: Apache-2.0

// The logarithm of a row's sum of exponentials in one pass: a running maximum, and a sum that is
// rescaled when the maximum grows. Private to tensor/cuda's .cu files.
//
//   LogSumExp<T> sum;
//   part.ForEach([&]<int n>(const Vector<T, n>& v, int64_t) { sum.Add(v); });
//   sum.OverTeam<kTeam>();              // now the row's, in every thread
//   lse = sum.max + std::log(sum.sum);
#ifndef APOGEE_TENSOR_CUDA_LOG_SUM_EXP_CUH_
#define APOGEE_TENSOR_CUDA_LOG_SUM_EXP_CUH_

#include <cmath>

#include "apogee/tensor/cuda/rows.cuh"

namespace apogee::cuda {

// e^x for what is stored as T. With 16 bit elements it is the kernels' arithmetic, not the memory,
// that the exact function would keep waiting, and the fast one's error is far below their rounding.
template <typename T>
__device__ __forceinline__ ComputeType<T> Exp(ComputeType<T> x) {
  if constexpr (sizeof(T) == 2) {
    return __expf(x);
  } else {
    return std::exp(x);
  }
}

// NaN loses: the callers subtract the maximum from every element and so meet the NaN again.
struct MaxNumber {
  template <typename C>
  __device__ C operator()(C a, C b) const {
    return std::fmax(a, b);
  }
  template <typename C>
  static __device__ C Identity() {
    return -C(__builtin_huge_val());
  }
};

// What to subtract from elements of at most `max`: itself, but 0 for -inf, where exp(-inf - -inf)
// would make a NaN of what is 0.
template <typename C>
__device__ __forceinline__ C ExpShift(C max) {
  return max == MaxNumber::Identity<C>() ? C(0) : max;
}

// sum = sum of exp(x - max) over what was added.
template <typename T>
struct LogSumExp {
  using C = ComputeType<T>;
  C max = MaxNumber::Identity<C>();
  C sum = 0;

  template <int n>
  __device__ __forceinline__ void Add(const Vector<T, n>& v) {
    C new_max = max;
#pragma unroll
    for (int j = 0; j < n; ++j) new_max = MaxNumber()(new_max, Load(v.at + j));
    Rescale(new_max);
    const C shift = ExpShift(max);
#pragma unroll
    for (int j = 0; j < n; ++j) sum += Exp<T>(Load(v.at + j) - shift);
  }
  template <int kTeam>
  __device__ __forceinline__ void OverTeam() {
    Rescale(TeamReduce<kTeam>(max, MaxNumber()));
    sum = TeamReduce<kTeam>(sum, Sum());
  }

 private:
  __device__ __forceinline__ void Rescale(C new_max) {
    sum *= Exp<T>(max - ExpShift(new_max));
    max = new_max;
  }
};

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_LOG_SUM_EXP_CUH_
