// SPDX-License-Identifier: Apache-2.0

// Joins attention over two sets of keys. The log-sum-exps give the weight of each.
#include <cmath>
#include <limits>

#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"

namespace apogee::cpu {
namespace {

template <typename T>
void MergeRow(const AttentionMergeArgs& args, int64_t batch, int64_t head, int64_t token) {
  T& sum_lse =
      static_cast<T*>(args.sum_lse)[batch * args.sum_lse_batch + head * args.sum_lse_head + token];
  const T part_lse =
      static_cast<const T*>(args.part_lse)[(batch * args.heads + head) * args.tokens + token];
  if (part_lse == -std::numeric_limits<T>::infinity()) return;
  const T max = std::max(sum_lse, part_lse);
  const T lse = max + std::log(std::exp(sum_lse - max) + std::exp(part_lse - max));
  const T keep = std::exp(sum_lse - lse), add = std::exp(part_lse - lse);
  T* sum = static_cast<T*>(args.sum.data) + batch * args.sum.batch_stride +
           token * args.sum.token_stride + head * args.sum.head_stride;
  const T* part = static_cast<const T*>(args.part.data) + batch * args.part.batch_stride +
                  token * args.part.token_stride + head * args.part.head_stride;
#pragma omp simd
  for (int64_t d = 0; d < args.head_dim; ++d) sum[d] = keep * sum[d] + add * part[d];
  sum_lse = lse;
}

template <typename T>
void Merge(const DeviceContext& context, const AttentionMergeArgs& args) {
  const int64_t rows = args.batch * args.tokens * args.heads;
  ForRows(context, rows, args.head_dim, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t token = row / args.heads;
      MergeRow<T>(args, token / args.tokens, row % args.heads, token % args.tokens);
    }
  });
}

}  // namespace

void attention_merge(const DeviceContext& context, const AttentionMergeArgs& args) {
  args.dtype == DType::kF64 ? Merge<double>(context, args) : Merge<float>(context, args);
}

}  // namespace apogee::cpu
