// SPDX-License-Identifier: Apache-2.0

// The kernels behind attention_forward and attention_backward. Private to tensor/cuda.
#ifndef APOGEE_TENSOR_CUDA_ATTENTION_PATHS_H_
#define APOGEE_TENSOR_CUDA_ATTENTION_PATHS_H_

#include <initializer_list>

#include "apogee/core/device_context.h"
#include "apogee/tensor/kernels/args.h"

namespace apogee::cuda {

inline constexpr int64_t kMaxHeadDim = 256;

// The products of 16 bit operands with sums of f32 for which tensor cores are made.
inline bool TakesMma(DType dtype, int64_t head_dim) {
  return DTypeSize(dtype) == 2 && head_dim <= 128;
}

// By plain arithmetic; 16 bit dtypes only where TakesMma says no. `dots`: D of every query, [batch,
// heads, q_tokens] in the compute type.
void AttentionForwardRows(const DeviceContext& context, const AttentionForwardArgs& args);
void AttentionBackwardRows(const DeviceContext& context, const AttentionBackwardArgs& args,
                           const void* dots);

// On tensor cores; needs TakesMma.
void AttentionForwardMma(const DeviceContext& context, const AttentionForwardArgs& args);
void AttentionBackwardMma(const DeviceContext& context, const AttentionBackwardArgs& args,
                          const float* dots);

// Calls fn.template operator()<T, kD>() for the dtype and the first kD that holds head_dim.
template <typename Args, typename Fn>
void DispatchAttentionRows(const Args& args, const Fn& fn) {
  DispatchFloat(args.dtype, "attention", [&]<typename T>() {
    if constexpr (sizeof(T) > 2) {
      if (args.head_dim <= 32) return fn.template operator()<T, 32>();
      if (args.head_dim <= 64) return fn.template operator()<T, 64>();
      if (args.head_dim <= 128) return fn.template operator()<T, 128>();
    }
    fn.template operator()<T, kMaxHeadDim>();
  });
}
template <typename Args, typename Fn>
void DispatchAttentionMma(const Args& args, const Fn& fn) {
  const auto of = [&]<typename T>() {
    if (args.head_dim <= 32) return fn.template operator()<T, 32>();
    if (args.head_dim <= 64) return fn.template operator()<T, 64>();
    if (args.head_dim <= 96) return fn.template operator()<T, 96>();
    fn.template operator()<T, 128>();
  };
  args.dtype == DType::kBF16 ? of.template operator()<BFloat16>()
                             : of.template operator()<Float16>();
}

// Every row begins at a multiple of 8 elements, and of 16 bytes, and has a multiple of 8.
inline bool TakesVectors(int64_t head_dim, std::initializer_list<AttentionOperand> operands) {
  bool takes = head_dim % 8 == 0;
  for (const AttentionOperand& x : operands) {
    takes = takes && reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.batch_stride % 8 == 0 &&
            x.token_stride % 8 == 0 && x.head_stride % 8 == 0;
  }
  return takes;
}

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_ATTENTION_PATHS_H_
