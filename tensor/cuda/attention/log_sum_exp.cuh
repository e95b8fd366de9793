// SPDX-License-Identifier: Apache-2.0

// The logarithm of a row's sum of exponentials in one pass, with a running maximum and a sum that
// is rescaled when the maximum grows. Private to tensor/cuda's .cu files.
//
//   LogSumExp<T> sum;
//   part.ForEach([&]<int n>(const Vector<T, n>& v, int64_t) { sum.Add(v); });
//   sum.OverTeam<kTeam>();              // now every thread has the row's
//   lse = sum.max + std::log(sum.sum);
#ifndef APOGEE_TENSOR_CUDA_ATTENTION_LOG_SUM_EXP_CUH_
#define APOGEE_TENSOR_CUDA_ATTENTION_LOG_SUM_EXP_CUH_

#include <cmath>

#include "apogee/tensor/cuda/device/rows.cuh"

namespace apogee::cuda {

// e^x for elements that are stored as T. 16-bit elements use the fast function: with the exact one,
// arithmetic and not memory would bound the kernels, and the fast one's error is far below the
// rounding to 16 bits.
template <typename T>
__device__ __forceinline__ ComputeType<T> Exp(ComputeType<T> x) {
  if constexpr (sizeof(T) == 2) {
    return __expf(x);
  } else {
    return std::exp(x);
  }
}

// The maximum of the operands that are not NaN. The callers subtract the maximum from every
// element, so a NaN still reaches the result.
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

// The number to subtract from elements before exp: `max`, but 0 if max is -inf, because
// exp(-inf - -inf) would be NaN instead of 0.
template <typename C>
__device__ __forceinline__ C ExpShift(C max) {
  return max == MaxNumber::Identity<C>() ? C(0) : max;
}

// max is the maximum of the elements that were added, sum the sum of exp(x - max) over them.
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

#endif  // APOGEE_TENSOR_CUDA_ATTENTION_LOG_SUM_EXP_CUH_
