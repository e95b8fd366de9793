// SPDX-License-Identifier: Apache-2.0

// Attention's forward pass by plain arithmetic: for f32, f64, and head dims that the kernels on
// tensor cores do not take.
#include "apogee/tensor/cuda/attention/attention_paths.h"
#include "apogee/tensor/cuda/attention/attention_rows.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"

namespace apogee::cuda {
namespace {

template <typename T, typename Rows>
__global__ void __launch_bounds__(Rows::kWarps* kWarp)
    ForwardKernel(const AttentionForwardArgs __grid_constant__ args) {
  using C = ComputeType<T>;
  const auto [tile, batch, head] = BlockTask::OfQueries(args);
  const int64_t kv_head = head / (args.heads / args.kv_heads);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t query0 = tile * Rows::kOwn, own0 = query0 + warp * Rows::kRows;
  const int depth =
      static_cast<int>(args.head_dim + Rows::kWidth - 1) / Rows::kWidth * Rows::kWidth;
  const C scale = static_cast<C>(args.scale * kLog2E);
  const SoftCap<C> cap(args);
  const T* const stored = nullptr;  // names the type
  C* const q = DynamicShared<C>();
  C* const k = q + Rows::kOwnTile;
  C* const v = k + Rows::kLaneTile;
  C* const own_q = q + warp * Rows::kRows * Rows::kStride;
  C* const weights = v + Rows::kLaneTile + warp * Rows::kRows * kWarp;

  typename Rows::Sums sums = {};
  C largest[Rows::kRows], total[Rows::kRows] = {};  // in base 2; this lane's part of the total
#pragma unroll
  for (C& each : largest) each = -C(__builtin_huge_val());
  LoadRows<Rows, Rows::kOwn>(args.q, batch, head, query0, args.q_tokens, args.head_dim, stored, q);
  const int64_t keys = SeenKeys(args, min(query0 + Rows::kOwn, args.q_tokens) - 1);
  const int64_t first_key = FirstKeyTile<kWarp>(args, batch, query0, Rows::kOwn);
  for (int64_t key0 = first_key; key0 < keys; key0 += kWarp) {
    __syncthreads();  // the last tile has been read
    LoadRows<Rows, kWarp>(args.k, batch, kv_head, key0, args.kv_tokens, args.head_dim, stored, k);
    LoadRows<Rows, kWarp>(args.v, batch, kv_head, key0, args.kv_tokens, args.head_dim, stored, v);
    __syncthreads();
    C scores[Rows::kRows];
    ScoreRows<Rows>(own_q, k, depth, scores);
    cap.Apply(scores);
#pragma unroll
    for (int r = 0; r < Rows::kRows; ++r) {
      const int64_t query = own0 + r, key = key0 + lane;
      const bool seen = query < args.q_tokens && Sees(args, batch, query, key);
      const C score = seen ? scores[r] * scale + MaskOf<T>(args, batch, head, query, key)
                           : -C(__builtin_huge_val());
      const C before = largest[r];
      largest[r] = Max()(before, WarpReduce(score, Max()));
      // A query that has seen no key has a maximum of -inf; subtracting that would give NaN.
      const C base = largest[r] == -C(__builtin_huge_val()) ? C(0) : largest[r];
      const C decay = Exp2(before - base), weight = Exp2(score - base);
      total[r] = total[r] * decay + weight;
      weights[r * kWarp + lane] = weight;
#pragma unroll
      for (C& sum : sums[r]) sum *= decay;
    }
    __syncwarp();
    AddRows<Rows>(weights, v, sums);
    __syncwarp();
  }
#pragma unroll
  for (int r = 0; r < Rows::kRows; ++r) {
    const C all = WarpReduce(total[r], Sum());
    if (own0 + r >= args.q_tokens) continue;
    if (lane == 0) {
      static_cast<C*>(args.lse)[StatisticsOf(args, batch, head) + own0 + r] =
          (largest[r] + Log2(all)) * C(kLn2);
    }
    StoreRow<Rows>(args.out, args.wide, batch, head, own0 + r, args.head_dim, stored,
                   all > 0 ? 1 / all : all, sums[r]);
  }
}

template <typename T, int kD>
void AttentionRowsForward(const DeviceContext& context, const AttentionForwardArgs& args) {
  using Rows = AttentionRows<T, kD>;
  using C = ComputeType<T>;
  const int64_t blocks = CeilDiv(args.q_tokens, Rows::kOwn) * args.batch * args.heads;
  if (blocks == 0) return;
  Launch(
      context,
      {.blocks = {static_cast<unsigned>(blocks)},
       .threads = {Rows::kWarps * kWarp},
       .shared_bytes = int64_t{sizeof(C)} * (Rows::kOwnTile + 2 * Rows::kLaneTile + Rows::kWeights),
       .name = "attention_forward"},
      &ForwardKernel<T, Rows>, args);
}

}  // namespace

void AttentionForwardRows(const DeviceContext& context, const AttentionForwardArgs& args) {
  DispatchAttentionRows(args,
                        [&]<typename T, int kD>() { AttentionRowsForward<T, kD>(context, args); });
}

}  // namespace apogee::cuda
