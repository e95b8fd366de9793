// SPDX-License-Identifier: Apache-2.0

// Attention's gradients by plain arithmetic: for f32, f64, and head dims that the kernels on tensor
// cores do not take.
#include "apogee/tensor/cuda/attention/attention_paths.h"
#include "apogee/tensor/cuda/attention/attention_rows.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"

namespace apogee::cuda {
namespace {

// A block owns keys of one key/value head, and loops over the queries of the heads that read them.
template <typename T, typename Rows>
__global__ void __launch_bounds__(Rows::kWarps* kWarp)
    KeyKernel(const AttentionBackwardArgs __grid_constant__ args, const void* dots) {
  using C = ComputeType<T>;
  const auto [tile, batch, kv_head] = BlockTask::OfKeys(args.batch, args.kv_heads);
  const int64_t group = args.heads / args.kv_heads;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t key0 = tile * Rows::kOwn, own0 = key0 + warp * Rows::kRows;
  const int depth =
      static_cast<int>(args.head_dim + Rows::kWidth - 1) / Rows::kWidth * Rows::kWidth;
  const C scale = static_cast<C>(args.scale * kLog2E);
  const SoftCap<C> cap(args);
  const T* const stored = nullptr;  // names the type
  C* const k = DynamicShared<C>();
  C* const v = k + Rows::kOwnTile;
  C* const q = v + Rows::kOwnTile;
  C* const dout = q + Rows::kLaneTile;
  C* const weights = dout + Rows::kLaneTile + warp * Rows::kRows * kWarp;
  C* const dscores = weights + Rows::kWeights;
  const int own = warp * Rows::kRows * Rows::kStride;

  const int64_t first_query = FirstQuery(args, key0);
  const int64_t queries = QueriesEnd(args, batch, first_query, key0 + Rows::kOwn - 1);
  typename Rows::Sums dk = {}, dv = {};
  LoadRows<Rows, Rows::kOwn>(args.k, batch, kv_head, key0, args.kv_tokens, args.head_dim, stored,
                             k);
  LoadRows<Rows, Rows::kOwn>(args.v, batch, kv_head, key0, args.kv_tokens, args.head_dim, stored,
                             v);
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int64_t query0 = first_query; query0 < queries; query0 += kWarp) {
      __syncthreads();  // the last tile has been read
      LoadRows<Rows, kWarp>(args.q, batch, head, query0, args.q_tokens, args.head_dim, stored, q);
      LoadRows<Rows, kWarp>(args.dout, batch, head, query0, args.q_tokens, args.head_dim, stored,
                            dout);
      __syncthreads();
      const int64_t query = query0 + lane, row = StatisticsOf(args, batch, head) + query;
      const bool there = query < args.q_tokens;
      const C lse = Log2SumExp<C>(args.lse, row, there);
      const C dot = there ? static_cast<const C*>(dots)[row] : C(0);
      C scores[Rows::kRows], dweights[Rows::kRows];
      ScoreRows<Rows>(k + own, q, depth, scores);
      cap.Apply(scores);
      ScoreRows<Rows>(v + own, dout, depth, dweights);
#pragma unroll
      for (int r = 0; r < Rows::kRows; ++r) {
        const int64_t key = own0 + r;
        const bool seen = there && key < args.kv_tokens && Sees(args, batch, query, key);
        const C weight =
            seen ? Exp2(scores[r] * scale + MaskOf<T>(args, batch, head, query, key) - lse) : C(0);
        weights[r * kWarp + lane] = weight;
        dscores[r * kWarp + lane] =
            seen ? weight * (dweights[r] - dot) * cap.Slope(scores[r]) : C(0);
      }
      __syncwarp();
      AddRows<Rows>(weights, dout, dv);
      AddRows<Rows>(dscores, q, dk);
      __syncwarp();
    }
  }
#pragma unroll
  for (int r = 0; r < Rows::kRows; ++r) {
    if (own0 + r >= args.kv_tokens) break;
    StoreRow<Rows>(args.dk, args.wide, batch, kv_head, own0 + r, args.head_dim, stored,
                   static_cast<C>(args.scale), dk[r]);
    StoreRow<Rows>(args.dv, args.wide, batch, kv_head, own0 + r, args.head_dim, stored, C(1),
                   dv[r]);
  }
}

// A block owns queries, and loops over the keys.
template <typename T, typename Rows>
__global__ void __launch_bounds__(Rows::kWarps* kWarp)
    QueryKernel(const AttentionBackwardArgs __grid_constant__ args, const void* dots) {
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
  C* const dout = q + Rows::kOwnTile;
  C* const k = dout + Rows::kOwnTile;
  C* const v = k + Rows::kLaneTile;
  C* const dscores = v + Rows::kLaneTile + warp * Rows::kRows * kWarp;
  const int own = warp * Rows::kRows * Rows::kStride;

  typename Rows::Sums dq = {};
  C lse[Rows::kRows], dot[Rows::kRows];
#pragma unroll
  for (int r = 0; r < Rows::kRows; ++r) {
    const bool there = own0 + r < args.q_tokens;
    const int64_t row = StatisticsOf(args, batch, head) + own0 + r;
    lse[r] = Log2SumExp<C>(args.lse, row, there);
    dot[r] = there ? static_cast<const C*>(dots)[row] : C(0);
  }
  LoadRows<Rows, Rows::kOwn>(args.q, batch, head, query0, args.q_tokens, args.head_dim, stored, q);
  LoadRows<Rows, Rows::kOwn>(args.dout, batch, head, query0, args.q_tokens, args.head_dim, stored,
                             dout);
  const int64_t keys = SeenKeys(args, min(query0 + Rows::kOwn, args.q_tokens) - 1);
  const int64_t first_key = FirstKeyTile<kWarp>(args, batch, query0, Rows::kOwn);
  for (int64_t key0 = first_key; key0 < keys; key0 += kWarp) {
    __syncthreads();  // the last tile has been read
    LoadRows<Rows, kWarp>(args.k, batch, kv_head, key0, args.kv_tokens, args.head_dim, stored, k);
    LoadRows<Rows, kWarp>(args.v, batch, kv_head, key0, args.kv_tokens, args.head_dim, stored, v);
    __syncthreads();
    C scores[Rows::kRows], dweights[Rows::kRows];
    ScoreRows<Rows>(q + own, k, depth, scores);
    cap.Apply(scores);
    ScoreRows<Rows>(dout + own, v, depth, dweights);
#pragma unroll
    for (int r = 0; r < Rows::kRows; ++r) {
      const int64_t query = own0 + r, key = key0 + lane;
      const bool seen = query < args.q_tokens && Sees(args, batch, query, key);
      const C weight =
          seen ? Exp2(scores[r] * scale + MaskOf<T>(args, batch, head, query, key) - lse[r]) : C(0);
      const C dscore = seen ? weight * (dweights[r] - dot[r]) : C(0);
      dscores[r * kWarp + lane] = dscore * cap.Slope(scores[r]);
      if (seen && args.dmask != nullptr) {
        static_cast<T*>(
            args.dmask)[(StatisticsOf(args, batch, head) + query) * args.kv_tokens + key] =
            Cast<T>(dscore);
      }
    }
    __syncwarp();
    AddRows<Rows>(dscores, k, dq);
    __syncwarp();
  }
#pragma unroll
  for (int r = 0; r < Rows::kRows; ++r) {
    if (own0 + r >= args.q_tokens) break;
    StoreRow<Rows>(args.dq, args.wide, batch, head, own0 + r, args.head_dim, stored,
                   static_cast<C>(args.scale), dq[r]);
  }
}

template <typename T, int kD>
void AttentionRowsBackward(const DeviceContext& context, const AttentionBackwardArgs& args,
                           const void* dots) {
  using Rows = AttentionRows<T, kD>;
  constexpr int64_t kTiles =
      int64_t{sizeof(ComputeType<T>)} * 2 * (Rows::kOwnTile + Rows::kLaneTile);
  constexpr int64_t kWeights = int64_t{sizeof(ComputeType<T>)} * Rows::kWeights;
  const auto blocks = [&](int64_t tokens, int64_t heads) {
    return static_cast<unsigned>(CeilDiv(tokens, Rows::kOwn) * args.batch * heads);
  };
  if (const unsigned count = blocks(args.kv_tokens, args.kv_heads); count > 0) {
    Launch(context,
           {.blocks = {count},
            .threads = {Rows::kWarps * kWarp},
            .shared_bytes = kTiles + 2 * kWeights,
            .name = "attention_backward"},
           &KeyKernel<T, Rows>, args, dots);
  }
  if (const unsigned count = blocks(args.q_tokens, args.heads); count > 0) {
    Launch(context,
           {.blocks = {count},
            .threads = {Rows::kWarps * kWarp},
            .shared_bytes = kTiles + kWeights,
            .name = "attention_backward"},
           &QueryKernel<T, Rows>, args, dots);
  }
}

}  // namespace

void AttentionBackwardRows(const DeviceContext& context, const AttentionBackwardArgs& args,
                           const void* dots) {
  DispatchAttentionRows(
      args, [&]<typename T, int kD>() { AttentionRowsBackward<T, kD>(context, args, dots); });
}

}  // namespace apogee::cuda
