// SPDX-License-Identifier: Apache-2.0

// Helpers of all attention kernels: addresses, the causal mask, and the task of each block. Private
// to tensor/cuda.
//
// Scores are never in global memory: the softmax runs over tiles of keys (Dao et al.,
// FlashAttention, arXiv:2205.14135). Backward computes the weights P again from the saved
// log-sum-exp:
//   D  = sum_d dout * out
//   dP = dout v^T
//   dS = P * (dP - D)
// dS is the gradient of the masked scores; that of scores before a soft cap has its slope as a
// factor.
// It takes two kernels: in one, blocks own keys and compute dk and dv; in the other, blocks own
// queries and compute dq. So each sum has one owner and one order, without atomics.
#ifndef APOGEE_TENSOR_CUDA_ATTENTION_ATTENTION_CUH_
#define APOGEE_TENSOR_CUDA_ATTENTION_ATTENTION_CUH_

#include <cmath>

#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/kernels/attention_args.h"

namespace apogee::cuda {

inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr double kLn2 = 0.6931471805599453;

__device__ __forceinline__ float Exp2(float x) { return exp2f(x); }
__device__ __forceinline__ double Exp2(double x) { return exp2(x); }
__device__ __forceinline__ float Log2(float x) { return log2f(x); }
__device__ __forceinline__ double Log2(double x) { return log2(x); }

template <typename T>
__device__ __forceinline__ T* HeadOf(const AttentionOperand& x, int64_t batch, int64_t head) {
  return static_cast<T*>(x.data) + batch * x.batch_stride + head * x.head_stride;
}

// The number of keys that query `i` sees.
template <typename Args>
__device__ __forceinline__ int64_t SeenKeys(const Args& args, int64_t i) {
  if (!args.causal) return args.kv_tokens;
  return max(int64_t{0}, min(args.kv_tokens, i + args.kv_tokens - args.q_tokens + 1));
}

// The first key that query `i` sees, as far as the window and the query's document say. The query
// exists. May be below 0, or kv_tokens or more.
template <typename Args>
__device__ __forceinline__ int64_t FirstKey(const Args& args, int64_t batch, int64_t i) {
  const FirstKeys& documents = args.first_keys;
  int64_t first = 0;
  if (args.window != 0) first = i + args.kv_tokens - args.q_tokens - args.window + 1;
  if (documents.data == nullptr) return first;
  return max(first, documents.data[batch * documents.batch_stride + i]);
}

// The keys [begin, end) that a query sees.
struct KeyRange {
  int begin, end;

  // Any `query`, also one that does not exist.
  template <typename Args>
  static __device__ __forceinline__ KeyRange Of(const Args& args, int64_t batch, int64_t query) {
    const bool there = query < args.q_tokens;
    const int64_t first = there ? min(FirstKey(args, batch, query), args.kv_tokens) : 0;
    return {static_cast<int>(first), static_cast<int>(SeenKeys(args, query))};
  }
  __device__ __forceinline__ bool Has(int key) const { return key >= begin && key < end; }
};

// Whether query `i` sees key `j`, as far as order, window and documents say. Both exist.
template <typename Args>
__device__ __forceinline__ bool Sees(const Args& args, int64_t batch, int64_t i, int64_t j) {
  return j < SeenKeys(args, i) && j >= FirstKey(args, batch, i);
}

// What the mask adds to the scaled score of a query and a key, in base 2; -inf if the key is not
// seen. T is the dtype of q.
template <typename T, typename Args>
__device__ __forceinline__ ComputeType<T> MaskOf(const Args& args, int64_t batch, int64_t head,
                                                 int64_t query, int64_t key) {
  using C = ComputeType<T>;
  const AttentionMask& mask = args.mask;
  if (mask.data == nullptr) return C(0);
  const int64_t at = batch * mask.strides[0] + head * mask.strides[1] + query * mask.strides[2] +
                     key * mask.strides[3];
  if (mask.dtype == DType::kU8) {
    return static_cast<const uint8_t*>(mask.data)[at] != 0 ? C(0) : -C(__builtin_huge_val());
  }
  return Load(static_cast<const T*>(mask.data) + at) * C(kLog2E);
}

// The soft cap of scores that are not scaled yet: with s = scale * score, a score becomes
// soft_cap * tanh(s / soft_cap) / scale.
template <typename C>
struct SoftCap {
  bool on;
  C to_tanh = 0, to_score = 0;

  template <typename Args>
  __device__ __forceinline__ explicit SoftCap(const Args& args) : on(args.soft_cap != 0) {
    if (!on) return;
    to_tanh = static_cast<C>(args.scale / args.soft_cap);
    to_score = static_cast<C>(args.soft_cap / args.scale);
  }
  template <int n>
  __device__ __forceinline__ void Apply(C (&scores)[n]) const {
    if (!on) return;
#pragma unroll
    for (C& score : scores) score = std::tanh(score * to_tanh) * to_score;
  }
  // The derivative, at a score that is capped already.
  __device__ __forceinline__ C Slope(C score) const {
    const C t = score * to_tanh;
    return on ? 1 - t * t : C(1);
  }
};

// The first key that any of `count` queries from `i` on sees, rounded down to a tile of kTile keys.
// All lanes of a warp call.
template <int kTile, typename Args>
__device__ __forceinline__ int64_t FirstKeyTile(const Args& args, int64_t batch, int64_t i,
                                                int64_t count) {
  if (args.window == 0 && args.first_keys.data == nullptr) return 0;
  const int64_t end = min(i + count, args.q_tokens);
  int64_t first = args.kv_tokens;
  for (i += threadIdx.x % kWarp; i < end; i += kWarp) first = min(first, FirstKey(args, batch, i));
  first = WarpReduce(first, [](int64_t a, int64_t b) { return min(a, b); });
  return max(int64_t{0}, first) / kTile * kTile;
}

// The first query that sees key `j`; q_tokens or more if none does.
template <typename Args>
__device__ __forceinline__ int64_t FirstQuery(const Args& args, int64_t j) {
  return args.causal ? max(int64_t{0}, j - (args.kv_tokens - args.q_tokens)) : 0;
}
// From query `i` on: one past the last query that sees key `j` or one before it, as far as window
// and documents say. All lanes of a warp call.
template <typename Args>
__device__ __forceinline__ int64_t QueriesEnd(const Args& args, int64_t batch, int64_t i,
                                              int64_t j) {
  if (args.first_keys.data == nullptr) return args.q_tokens;
  int64_t end = i;
  for (i += threadIdx.x % kWarp; i < args.q_tokens; i += kWarp) {
    if (FirstKey(args, batch, i) <= j) end = i + 1;
  }
  return WarpReduce(end, [](int64_t a, int64_t b) { return max(a, b); });
}

// The tile of queries or keys, and the head, that a block works on. Blocks are numbered so that
// those with the most work start first: the last queries see the most keys, and the first keys are
// seen by the most queries.
struct BlockTask {
  int64_t tile, batch, head;

  static __device__ BlockTask OfQueries(const auto& args) {
    BlockTask task = OfKeys(args.batch, args.heads);
    task.tile = gridDim.x / (args.batch * args.heads) - 1 - task.tile;
    return task;
  }
  static __device__ BlockTask OfKeys(int64_t batches, int64_t heads) {
    const int64_t index = blockIdx.x;
    return {index / (batches * heads), index / heads % batches, index % heads};
  }
};

// The index of one head's first row in lse and D, [batch, heads, q_tokens].
template <typename Args>
__device__ __forceinline__ int64_t StatisticsOf(const Args& args, int64_t batch, int64_t head) {
  return (batch * args.heads + head) * args.q_tokens;
}

// The log-sum-exp in base 2. For a query that does not exist (not `there`) or sees no key it is
// +infinity, so that all its weights are 0.
template <typename C>
__device__ __forceinline__ C Log2SumExp(const void* lse, int64_t row, bool there) {
  const C value = there ? static_cast<const C*>(lse)[row] : -C(__builtin_huge_val());
  return value == -C(__builtin_huge_val()) ? -value : value * C(kLog2E);
}

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_ATTENTION_ATTENTION_CUH_
