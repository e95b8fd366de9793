// SPDX-License-Identifier: Apache-2.0

// Vectors of eight elements, because a byte holds eight sign bits. One thread works on one vector.
// Private to comm/cuda.
//
//   Lanes<float> x = LoadLanes<float>(values, count, aligned);   // elements from `count` on are 0
//   unsigned signs = SignBits(x);
//   float y = Signed(signs >> k & 1, scale);                     // +-scale
#ifndef APOGEE_COMM_CUDA_SIGN_LANES_CUH_
#define APOGEE_COMM_CUDA_SIGN_LANES_CUH_

#include "apogee/tensor/cuda/device/device.cuh"

namespace apogee::comm::cuda {

inline constexpr int kLanes = 8;

template <typename C>
struct Lanes {
  C at[kLanes];
};

// `aligned`: whether x may be read in vectors of 16 bytes.
template <typename C, typename T>
__device__ __forceinline__ Lanes<C> LoadLanes(const T* x, int64_t count, bool aligned) {
  constexpr int kWidth = apogee::cuda::kVectorWidth<T>;
  Lanes<C> lanes;
  if (aligned && count >= kLanes) {
#pragma unroll
    for (int first = 0; first < kLanes; first += kWidth) {
      const auto vector = apogee::cuda::LoadVector<kWidth>(x + first);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) lanes.at[first + k] = apogee::cuda::Cast<C>(vector.at[k]);
    }
  } else {
#pragma unroll
    for (int k = 0; k < kLanes; ++k) {
      lanes.at[k] = k < count ? apogee::cuda::Cast<C>(x[k]) : C(0);
    }
  }
  return lanes;
}

template <typename C, typename T>
__device__ __forceinline__ void StoreLanes(T* x, const Lanes<C>& lanes, int64_t count,
                                           bool aligned) {
  constexpr int kWidth = apogee::cuda::kVectorWidth<T>;
  if (aligned && count >= kLanes) {
#pragma unroll
    for (int first = 0; first < kLanes; first += kWidth) {
      apogee::cuda::Vector<T, kWidth> vector;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) vector.at[k] = apogee::cuda::Cast<T>(lanes.at[first + k]);
      apogee::cuda::StoreVector(x + first, vector);
    }
  } else {
#pragma unroll
    for (int k = 0; k < kLanes; ++k) {
      if (k < count) x[k] = apogee::cuda::Cast<T>(lanes.at[k]);
    }
  }
}

// Bit k is 1 if element k >= 0. NaN gives 0.
template <typename C>
__device__ __forceinline__ unsigned SignBits(const Lanes<C>& lanes) {
  unsigned bits = 0;
#pragma unroll
  for (int k = 0; k < kLanes; ++k) bits |= (lanes.at[k] >= C(0) ? 1u : 0u) << k;
  return bits;
}

template <typename C>
__device__ __forceinline__ C Signed(bool positive, C scale) {
  return positive ? scale : -scale;
}

// Sets elements whose bit is 0 to 0.
template <typename C>
__device__ __forceinline__ Lanes<C> OnlyLive(Lanes<C> lanes, unsigned live) {
#pragma unroll
  for (int k = 0; k < kLanes; ++k) lanes.at[k] = (live >> k & 1u) != 0 ? lanes.at[k] : C(0);
  return lanes;
}

template <typename C>
__device__ __forceinline__ double SquareSum(const Lanes<C>& lanes) {
  double sum = 0;
#pragma unroll
  for (int k = 0; k < kLanes; ++k) {
    sum += static_cast<double>(lanes.at[k]) * static_cast<double>(lanes.at[k]);
  }
  return sum;
}

// The elements that take part: those before `count` whose bit is 1 (null: all of those).
struct Live {
  const uint8_t* bits;
  int64_t count;

  __device__ __forceinline__ unsigned At(int64_t byte) const {
    const unsigned set = bits == nullptr ? 255u : bits[byte];
    const int64_t rest = count - kLanes * byte;
    return rest >= kLanes ? set : rest <= 0 ? 0u : set & ((1u << rest) - 1u);
  }
};

}  // namespace apogee::comm::cuda

#endif  // APOGEE_COMM_CUDA_SIGN_LANES_CUH_
