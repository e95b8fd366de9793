// SPDX-License-Identifier: Apache-2.0

// Joins attention over two sets of keys. The log-sum-exps give the weight of each. A warp per row.
#include <cmath>

#include "apogee/tensor/cuda/attention/log_sum_exp.cuh"
#include "apogee/tensor/cuda/device/rows.cuh"
#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

template <typename T, int kWidth>
__global__ void __launch_bounds__(kRowThreads) MergeKernel(AttentionMergeArgs args) {
  const int64_t rows = args.batch * args.tokens * args.heads;
  for (int64_t row = FirstRow<kWarp>(); row < rows; row += RowStep<kWarp>()) {
    const int64_t head = row % args.heads, token = row / args.heads % args.tokens;
    const int64_t batch = row / args.heads / args.tokens;
    T* sum_lse = static_cast<T*>(args.sum_lse) + batch * args.sum_lse_batch +
                 head * args.sum_lse_head + token;
    const T part_lse =
        static_cast<const T*>(args.part_lse)[(batch * args.heads + head) * args.tokens + token];
    if (part_lse == MaxNumber::Identity<T>()) continue;
    const T old_lse = *sum_lse;
    const T max = MaxNumber()(old_lse, part_lse);
    const T lse = max + std::log(std::exp(old_lse - max) + std::exp(part_lse - max));
    const T keep = std::exp(old_lse - lse), add = std::exp(part_lse - lse);
    T* sum = static_cast<T*>(args.sum.data) + batch * args.sum.batch_stride +
             token * args.sum.token_stride + head * args.sum.head_stride;
    const T* part = static_cast<const T*>(args.part.data) + batch * args.part.batch_stride +
                    token * args.part.token_stride + head * args.part.head_stride;
    for (int64_t d = TeamLane<kWarp>() * kWidth; d < args.head_dim; d += kWarp * kWidth) {
      Vector<T, kWidth> a = LoadVector<kWidth>(sum + d);
      const Vector<T, kWidth> b = LoadVector<kWidth>(part + d);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) a.at[j] = keep * a.at[j] + add * b.at[j];
      StoreVector(sum + d, a);
    }
    __syncwarp();  // every lane has read the old log-sum-exp
    if (TeamLane<kWarp>() == 0) *sum_lse = lse;
  }
}

// Whether every row begins at a multiple of 16 bytes.
template <typename T>
bool RowsAlign16(const AttentionOperand& x) {
  const int64_t strides = x.batch_stride | x.token_stride | x.head_stride;
  return IsAligned16(x.data) && strides % kVectorWidth<T> == 0;
}

template <typename T>
void Merge(const DeviceContext& context, const AttentionMergeArgs& args) {
  constexpr int kWidth = kVectorWidth<T>;
  const int64_t rows = args.batch * args.tokens * args.heads;
  if (rows == 0) return;
  const bool vectors =
      args.head_dim % kWidth == 0 && RowsAlign16<T>(args.sum) && RowsAlign16<T>(args.part);
  Launch(context, RowGrid<kWarp>(context, rows),
         vectors ? &MergeKernel<T, kWidth> : &MergeKernel<T, 1>, args);
}

}  // namespace

void attention_merge(const DeviceContext& context, const AttentionMergeArgs& args) {
  args.dtype == DType::kF64 ? Merge<double>(context, args) : Merge<float>(context, args);
}

}  // namespace apogee::cuda
