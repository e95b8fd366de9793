// SPDX-License-Identifier: Apache-2.0

// Division by a number that the host knows, by multiplication instead of the GPU's slow integer
// division (Granlund and Montgomery, "Division by invariant integers using multiplication", 1994).
// Private to tensor/cuda.
//
//   const Divisor cols(args.cols);                      // on the host
//   const uint32_t row = cols.Divide(i), col = i - row * cols.value;
#ifndef APOGEE_TENSOR_CUDA_DEVICE_DIVISOR_CUH_
#define APOGEE_TENSOR_CUDA_DEVICE_DIVISOR_CUH_

#include <cuda_runtime.h>

#include <cstdint>

namespace apogee::cuda {

struct Divisor {
  uint32_t value = 1, multiplier = 1, shift = 0;

  Divisor() = default;
  // divisor in [1, 2^31].
  explicit Divisor(int64_t divisor) : value(static_cast<uint32_t>(divisor)) {
    while ((uint64_t{1} << shift) < value) ++shift;
    const uint64_t above = (uint64_t{1} << shift) - value;
    multiplier = static_cast<uint32_t>((above << 32) / value + 1);
  }
  // n / value for n < 2^31.
  __device__ __forceinline__ uint32_t Divide(uint32_t n) const {
    return (__umulhi(n, multiplier) + n) >> shift;
  }
};

// As Divisor, but for 64-bit indices. It uses a Divisor if the largest index is less than 2^31.
struct WideDivisor {
  int64_t value = 1;
  bool narrow = true;
  Divisor divisor;

  WideDivisor() = default;
  // divisor >= 1.
  WideDivisor(int64_t divide_by, int64_t largest)
      : value(divide_by), narrow(largest < int64_t{1} << 31) {
    if (narrow && divide_by <= largest) divisor = Divisor(divide_by);
    if (narrow && divide_by > largest) divisor = Divisor(int64_t{1} << 31);
  }
  __device__ __forceinline__ int64_t Divide(int64_t n) const {
    return narrow ? int64_t{divisor.Divide(static_cast<uint32_t>(n))} : n / value;
  }
  __device__ __forceinline__ int64_t Remainder(int64_t n) const { return n - Divide(n) * value; }
};

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_DEVICE_DIVISOR_CUH_
