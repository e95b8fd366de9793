// The kernels behind attention_forward and attention_backward. Private to tensor/cuda.
#ifndef APOGEE_TENSOR_CUDA_ATTENTION_PATHS_H_
#define APOGEE_TENSOR_CUDA_ATTENTION_PATHS_H_

#include "apogee/core/device_context.h"
#include "apogee/tensor/kernels/args.h"

namespace apogee::cuda {

inline constexpr int64_t kMaxHeadDim = 256;

// By plain arithmetic. `dots`: D of every query, [batch, heads, q_tokens] in the compute type.
void AttentionForwardRows(const DeviceContext& context, const AttentionForwardArgs& args);
void AttentionBackwardRows(const DeviceContext& context, const AttentionBackwardArgs& args,
                           const void* dots);

// Calls fn.template operator()<T, kD>() for the dtype and the first kD that holds head_dim.
template <typename Args, typename Fn>
void DispatchAttentionRows(const Args& args, const Fn& fn) {
  DispatchFloat(args.dtype, "attention", [&]<typename T>() {
    if (args.head_dim <= 32) return fn.template operator()<T, 32>();
    if (args.head_dim <= 64) return fn.template operator()<T, 64>();
    if (args.head_dim <= 128) return fn.template operator()<T, 128>();
    fn.template operator()<T, kMaxHeadDim>();
  });
}

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_ATTENTION_PATHS_H_
