// SPDX-License-Identifier: Apache-2.0

// attention_forward and attention_backward: choose the kernels, and compute D for backward.
#include "apogee/tensor/cuda/attention/attention.cuh"
#include "apogee/tensor/cuda/attention/attention_paths.h"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

void CheckHeadDim(int64_t head_dim) {
  APOGEE_CHECK(head_dim <= kMaxHeadDim, "attention: head size ", head_dim,
               " is too large; the GPU's kernels take up to ", kMaxHeadDim);
}

// D = sum_d dout * out, one warp per query.
template <typename T>
__global__ void DotKernel(const AttentionBackwardArgs __grid_constant__ args, int64_t rows,
                          ComputeType<T>* dots) {
  const int64_t row = int64_t{blockIdx.x} * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  if (row >= rows) return;
  const int64_t query = row % args.q_tokens, head = row / args.q_tokens % args.heads;
  const int64_t batch = row / args.q_tokens / args.heads;
  const T* out = HeadOf<T>(args.out, batch, head) + query * args.out.token_stride;
  const T* dout = HeadOf<T>(args.dout, batch, head) + query * args.dout.token_stride;
  ComputeType<T> dot = 0;
  for (int64_t d = threadIdx.x % kWarp; d < args.head_dim; d += kWarp) {
    dot += Load(out + d) * Load(dout + d);
  }
  dot = WarpReduce(dot, Sum());
  if (threadIdx.x % kWarp == 0) dots[row] = dot;
}

template <typename T>
void AttentionBackward(const DeviceContext& context, const AttentionBackwardArgs& args) {
  using C = ComputeType<T>;
  const int64_t rows = args.batch * args.heads * args.q_tokens;
  const Workspace dots(context, rows * int64_t{sizeof(C)});
  constexpr int kRowsOfBlock = 8;
  if (rows > 0) {
    Launch(context,
           {.blocks = {static_cast<unsigned>(CeilDiv(rows, kRowsOfBlock))},
            .threads = {kRowsOfBlock * kWarp}},
           &DotKernel<T>, args, rows, dots.data<C>());
  }
  if constexpr (sizeof(T) == 2) {
    if (TakesMma(args)) {
      return AttentionBackwardMma(context, args, dots.data<float>());
    }
  }
  AttentionBackwardRows(context, args, dots.data<C>());
}

}  // namespace

void attention_forward(const DeviceContext& context, const AttentionForwardArgs& args) {
  CheckHeadDim(args.head_dim);
  if (TakesMma(args)) return AttentionForwardMma(context, args);
  AttentionForwardRows(context, args);
}

void attention_backward(const DeviceContext& context, const AttentionBackwardArgs& args) {
  CheckHeadDim(args.head_dim);
  DispatchFloat(args.dtype, "attention_backward",
                [&]<typename T>() { AttentionBackward<T>(context, args); });
}

}  // namespace apogee::cuda
