// SPDX-License-Identifier: Apache-2.0

// Attention's forward pass on tensor cores.
#include "apogee/tensor/cuda/attention/attention_mma.cuh"
#include "apogee/tensor/cuda/attention/attention_paths.h"
#include "apogee/tensor/cuda/device/launch.cuh"

namespace apogee::cuda {
namespace {

constexpr int kKeys = 64;  // keys per tile
constexpr float kInfinity = __builtin_huge_valf();

// Turns the scores of rows g and g + 8 into weights relative to the new maximum, and rescales
// `sums` from the maximum before. `key0` is the tile's first key, `seen` are the keys that each
// row sees. A row's total is only this lane's part of it.
template <int kD>
__device__ __forceinline__ void Softmax(const KeyRange (&seen)[2], int key0, float scale,
                                        float (&scores)[kKeys / 8][4], float (&largest)[2],
                                        float (&total)[2], float (&sums)[kD / 8][4]) {
  const int pair = key0 + threadIdx.x % 4 * 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float most = -kInfinity;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& score = scores[n][2 * r + e];
        score = seen[r].Has(n * 8 + pair + e) ? score * scale : -kInfinity;
        most = Max()(most, score);
      }
    }
    const float before = largest[r];
    largest[r] = Max()(before, RowReduce(most, Max()));
    // A query that has seen no key has a maximum of -inf; subtracting that would give NaN.
    const float base = largest[r] == -kInfinity ? 0 : largest[r];
    const float decay = Exp2(before - base);
    total[r] *= decay;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& weight = scores[n][2 * r + e];
        weight = Exp2(weight - base);
        total[r] += weight;
      }
    }
#pragma unroll
    for (auto& sum : sums) {
      sum[2 * r] *= decay;
      sum[2 * r + 1] *= decay;
    }
  }
}

template <typename T, int kD, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp)
    ForwardKernel(const AttentionForwardArgs __grid_constant__ args, bool vectors) {
  constexpr int kOwn = 16 * kWarps;
  const auto [block, batch, head] = BlockTask::OfQueries(args);
  const int64_t kv_head = head / (args.heads / args.kv_heads);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t query0 = block * kOwn, query = query0 + warp * 16 + lane / 4;
  const int64_t keys = SeenKeys(args, min(query0 + kOwn, args.q_tokens) - 1);
  const float scale = static_cast<float>(args.scale * kLog2E);
  const T* const stored = nullptr;  // names the type
  T* const q = DynamicShared<T>();
  T* const k = q + kOwn * kMmaStride<kD>;
  T* const v = k + kKeys * kMmaStride<kD>;
  const auto load = [&](const AttentionOperand& x, int64_t key0, T* tile) {
    LoadTile<kKeys, kD, kWarps>(x, batch, kv_head, key0, args.kv_tokens, args.head_dim, vectors,
                                tile);
  };

  // A warp's queries may see fewer tiles of keys than the block's.
  const int64_t warp_keys = SeenKeys(args, query0 + warp * 16 + 15);
  const KeyRange seen[2] = {KeyRange::Of(args, batch, query), KeyRange::Of(args, batch, query + 8)};
  const int64_t first_key = FirstKeyTile<kKeys>(args, batch, query0, kOwn);
  float sums[kD / 8][4] = {}, largest[2] = {-kInfinity, -kInfinity}, total[2] = {};
  LoadTile<kOwn, kD, kWarps>(args.q, batch, head, query0, args.q_tokens, args.head_dim, vectors, q);
  if (first_key < keys) load(args.k, first_key, k);
  CommitCopies();
  for (int64_t key0 = first_key; key0 < keys; key0 += kKeys) {
    __syncthreads();  // the last tile's values have been read
    load(args.v, key0, v);
    CommitCopies();
    WaitCopies<1>();
    __syncthreads();  // the keys have been loaded
    float scores[kKeys / 8][4];
    if (key0 < warp_keys) {
      MultiplyRows<kKeys, kD>(q + warp * 16 * kMmaStride<kD>, k, scores);
    }
    __syncthreads();  // the keys have been read
    if (key0 + kKeys < keys) load(args.k, key0 + kKeys, k);
    CommitCopies();
    if (key0 < warp_keys)
      Softmax<kD>(seen, static_cast<int>(key0), scale, scores, largest, total, sums);
    WaitCopies<1>();
    __syncthreads();  // the values have been loaded
    if (key0 < warp_keys) AddWeightedRows<kKeys, kD>(scores, v, sums);
  }
  WaitCopies<0>();
  float scales[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float all = RowReduce(total[r], Sum());
    scales[r] = all > 0 ? 1 / all : all;
    if (lane % 4 == 0 && query + 8 * r < args.q_tokens) {
      static_cast<float*>(args.lse)[StatisticsOf(args, batch, head) + query + 8 * r] =
          (largest[r] + Log2(all)) * static_cast<float>(kLn2);
    }
  }
  StoreRows<kD>(args.out, args.wide, vectors, batch, head, query, args.q_tokens, args.head_dim,
                stored, scales, sums);
}

template <typename T, int kD, int kWarps>
void ForwardOf(const DeviceContext& context, const AttentionForwardArgs& args) {
  constexpr int64_t kOwn = 16 * kWarps;
  const int64_t blocks = CeilDiv(args.q_tokens, kOwn) * args.batch * args.heads;
  if (blocks == 0) return;
  const bool vectors = TakesVectors(args.head_dim, {args.q, args.k, args.v, args.out});
  Launch(context,
         {.blocks = {static_cast<unsigned>(blocks)},
          .threads = {kWarps * kWarp},
          .shared_bytes = int64_t{sizeof(T)} * (kOwn + 2 * kKeys) * kMmaStride<kD>,
          .name = "attention_forward"},
         &ForwardKernel<T, kD, kWarps>, args, vectors);
}

// Larger blocks read keys and values half as often. If they would not fill the GPU, smaller blocks
// run. The results are the same.
template <typename T, int kD>
void AttentionMmaForward(const DeviceContext& context, const AttentionForwardArgs& args) {
  const int64_t large = args.q_tokens / 128 * args.batch * args.heads;
  if (large >= StreamContext::Of(context).num_multiprocessors()) {
    return ForwardOf<T, kD, 8>(context, args);
  }
  ForwardOf<T, kD, 4>(context, args);
}

}  // namespace

void AttentionForwardMma(const DeviceContext& context, const AttentionForwardArgs& args) {
  DispatchAttentionMma(args,
                       [&]<typename T, int kD>() { AttentionMmaForward<T, kD>(context, args); });
}

}  // namespace apogee::cuda
