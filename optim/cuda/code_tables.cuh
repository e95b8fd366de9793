// The tables of a CodeMap on the GPU, and a block's encoder. Private to optim/cuda.
//
//   const UploadedCodes codes(context, CodeMap::Signed());   // lives until kernels are queued
//   ... codes.table() ...                                    // a kernel's parameter
//   BlockEncoder<true, float> encode(absmax, keep_sign);     // in the kernel
//   int code = encode(table, value);
#ifndef APOGEE_OPTIM_CUDA_CODE_TABLES_CUH_
#define APOGEE_OPTIM_CUDA_CODE_TABLES_CUH_

#include <bit>

#include "apogee/core/device_context.h"
#include "apogee/optim/code_map.h"
#include "apogee/tensor/cuda/device.cuh"

namespace apogee::optim::cuda {

struct CodeTable {
  float values[256];
  uint32_t buckets[CodeMap::kBuckets];
};

// A dozen kilobytes that are copied for every call: less than a launch costs, and nothing to keep.
class UploadedCodes {
 public:
  UploadedCodes(const DeviceContext& context, const CodeMap& map)
      : memory_(context, sizeof(CodeTable)) {
    CodeTable* to = memory_.data<CodeTable>();
    context.CopyFromHost(to->values, map.values(), sizeof(to->values));
    context.CopyFromHost(to->buckets, map.buckets(), sizeof(to->buckets));
  }
  const CodeTable* table() const { return memory_.data<CodeTable>(); }

 private:
  Workspace memory_;
};

// By the whole block of kThreads threads; a barrier must follow.
template <int kThreads>
__device__ __forceinline__ void CopyTable(const CodeTable* from, CodeTable& to) {
  for (int i = static_cast<int>(threadIdx.x); i < 256; i += kThreads)
    to.values[i] = from->values[i];
  for (int i = static_cast<int>(threadIdx.x); i < CodeMap::kBuckets; i += kThreads) {
    to.buckets[i] = from->buckets[i];
  }
}

// Codes of values / absmax of one block.
template <bool kSigned, typename C>
class BlockEncoder {
 public:
  __device__ BlockEncoder(C absmax, bool keep_sign)
      : keep_sign_(keep_sign ? 1 : 0),
        zero_(absmax == 0),
        // 1 / absmax must not overflow: then scale both by a power of two.
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

// Magnitudes as integers, which order as they do, NaN largest: maxima of them may be taken in any
// order, by atomics too.
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

}  // namespace apogee::optim::cuda

#endif  // APOGEE_OPTIM_CUDA_CODE_TABLES_CUH_
