// Division by a number that the host knows, without the GPU's slow integer division (Granlund and
// Montgomery, "Division by invariant integers using multiplication", 1994). Private to tensor/cuda.
//
//   const Divisor cols(args.cols);                      // on the host
//   const uint32_t row = cols.Divide(i), col = i - row * cols.value;
#ifndef APOGEE_TENSOR_CUDA_DIVISOR_CUH_
#define APOGEE_TENSOR_CUDA_DIVISOR_CUH_

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

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_DIVISOR_CUH_
