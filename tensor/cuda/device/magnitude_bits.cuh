// SPDX-License-Identifier: Apache-2.0

// Maxima of magnitudes as integers.
//
//   MagnitudeBits<float> largest = 0;
//   largest = MaxBits()(largest, BitsOfMagnitude(x));
//   largest = WarpReduce(largest, MaxBits());
#ifndef APOGEE_TENSOR_CUDA_DEVICE_MAGNITUDE_BITS_CUH_
#define APOGEE_TENSOR_CUDA_DEVICE_MAGNITUDE_BITS_CUH_

#include <bit>
#include <type_traits>

#include "apogee/tensor/cuda/device/device.cuh"

namespace apogee::cuda {

// The bits of a magnitude as an integer. They have the order of the magnitudes, with NaN largest,
// so maxima may be taken in any order and by atomics.
template <typename C>
using MagnitudeBits = std::conditional_t<sizeof(C) == 4, unsigned, unsigned long long>;
template <typename C>
__device__ __forceinline__ MagnitudeBits<C> BitsOfMagnitude(C x) {
  using Bits = MagnitudeBits<C>;
  return std::bit_cast<Bits>(x) & ~(Bits{1} << (8 * sizeof(C) - 1));
}
struct MaxBits {
  template <typename B>
  __device__ B operator()(B a, B b) const {
    return a > b ? a : b;
  }
  template <typename B>
  static __device__ B Identity() {
    return 0;
  }
};

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_DEVICE_MAGNITUDE_BITS_CUH_
