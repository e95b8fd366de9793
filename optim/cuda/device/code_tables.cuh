// SPDX-License-Identifier: Apache-2.0

// The tables of a CodeMap on the GPU, and the encoder of a block. Private to optim/cuda.
//
//   const CodeAddresses codes = CodesOnGpu(context, CodeMap::Signed());   // a kernel parameter
//   CopyTable<256>(codes, table);                            // in the kernel, to shared memory
//   BlockEncoder<true, float> encode(absmax, keep_sign);     // in the kernel
//   int code = encode(table, value);
#ifndef APOGEE_OPTIM_CUDA_DEVICE_CODE_TABLES_CUH_
#define APOGEE_OPTIM_CUDA_DEVICE_CODE_TABLES_CUH_

#include <bit>

#include "apogee/core/device_context.h"
#include "apogee/optim/lowbit/code_map.h"
#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/magnitude_bits.cuh"
#include "apogee/tensor/cuda/runtime/stream_context.cuh"

namespace apogee::optim::cuda {

struct CodeTable {
  float values[256];
  uint32_t buckets[CodeMap::kBuckets];
};
// Addresses of the tables in the GPU's memory.
struct CodeAddresses {
  const float* values;
  const uint32_t* buckets;
};

// Copies the tables of `map` to the GPU once. There are two maps, which live as long as the
// process.
inline CodeAddresses CodesOnGpu(const DeviceContext& context, const CodeMap& map) {
  const auto& gpu = apogee::cuda::StreamContext::Of(context);
  const auto copy = [&]<typename T>(const T* table, int64_t count) {
    return static_cast<const T*>(gpu.Constant(table, count * int64_t{sizeof(T)}));
  };
  return {copy(map.values(), 256), copy(map.buckets(), CodeMap::kBuckets)};
}

// Called by all kThreads threads of a block. A barrier must follow.
template <int kThreads>
__device__ __forceinline__ void CopyTable(const CodeAddresses& from, CodeTable& to) {
  for (int i = static_cast<int>(threadIdx.x); i < 256; i += kThreads) to.values[i] = from.values[i];
  for (int i = static_cast<int>(threadIdx.x); i < CodeMap::kBuckets; i += kThreads) {
    to.buckets[i] = from.buckets[i];
  }
}

// Encodes values / absmax of one block.
template <bool kSigned, typename C>
class BlockEncoder {
 public:
  __device__ BlockEncoder(C absmax, bool keep_sign)
      : keep_sign_(keep_sign ? 1 : 0),
        zero_(absmax == 0),
        // If 1 / absmax could overflow, both are scaled by a power of two.
        lift_(absmax < C(1e-30) ? C(0x1p100) : C(1)),
        inverse_(1 / (absmax * lift_)) {}

  __device__ int operator()(const CodeTable& table, C value) const {
    if (zero_) return kSigned ? 127 : 0;
    const auto ratio = static_cast<float>(value * lift_ * inverse_);
    const uint32_t magnitude = CodeMap::EncodeMagnitude(table.buckets, ratio);
    return static_cast<int>(kSigned ? CodeMap::SignedCode(magnitude, ratio, keep_sign_)
                                    : magnitude);
  }

 private:
  uint32_t keep_sign_;
  bool zero_;
  C lift_, inverse_;
};

using apogee::cuda::BitsOfMagnitude;
using apogee::cuda::MagnitudeBits;
using apogee::cuda::MaxBits;

}  // namespace apogee::optim::cuda

#endif  // APOGEE_OPTIM_CUDA_DEVICE_CODE_TABLES_CUH_
