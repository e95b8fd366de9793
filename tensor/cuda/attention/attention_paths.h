// SPDX-License-Identifier: Apache-2.0

// The kernels behind attention_forward and attention_backward: one path by plain arithmetic, one on
// tensor cores. Private to tensor/cuda.
#ifndef APOGEE_TENSOR_CUDA_ATTENTION_ATTENTION_PATHS_H_
#define APOGEE_TENSOR_CUDA_ATTENTION_ATTENTION_PATHS_H_

#include <initializer_list>

#include "apogee/core/device_context.h"
#include "apogee/tensor/kernels/attention_args.h"

namespace apogee::cuda {

inline constexpr int64_t kMaxHeadDim = 256;

// Whether attention runs on tensor cores: products of 16-bit operands with f32 sums. These kernels
// know no mask but the causal one, and documents, and no soft cap.
template <typename Args>
bool TakesMma(const Args& args) {
  return DTypeSize(args.dtype) == 2 && args.head_dim <= 128 && args.mask.data == nullptr &&
         args.window == 0 && args.soft_cap == 0;
}

// By plain arithmetic. Instantiated for 16-bit dtypes only at kMaxHeadDim: TakesMma takes most
// shorter heads. `dots` [batch, heads, q_tokens], in the compute type, is D of attention.cuh.
void AttentionForwardRows(const DeviceContext& context, const AttentionForwardArgs& args);
void AttentionBackwardRows(const DeviceContext& context, const AttentionBackwardArgs& args,
                           const void* dots);

// On tensor cores. TakesMma must be true.
void AttentionForwardMma(const DeviceContext& context, const AttentionForwardArgs& args);
void AttentionBackwardMma(const DeviceContext& context, const AttentionBackwardArgs& args,
                          const float* dots);

// Calls fn.template operator()<T, kD>() for the dtype and the smallest kD >= head_dim.
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

// Whether the rows of all operands can be read in vectors of 8 elements (16 bytes): every row has a
// multiple of 8 elements and begins at a multiple of 16 bytes.
inline bool TakesVectors(int64_t head_dim, std::initializer_list<AttentionOperand> operands) {
  bool takes = head_dim % 8 == 0;
  for (const AttentionOperand& x : operands) {
    takes = takes && reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.batch_stride % 8 == 0 &&
            x.token_stride % 8 == 0 && x.head_stride % 8 == 0;
  }
  return takes;
}

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_ATTENTION_ATTENTION_PATHS_H_
