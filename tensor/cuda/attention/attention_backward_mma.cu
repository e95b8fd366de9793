// SPDX-License-Identifier: Apache-2.0

// Attention's gradients on tensor cores.
#include "apogee/tensor/cuda/attention/attention_mma.cuh"
#include "apogee/tensor/cuda/attention/attention_paths.h"
#include "apogee/tensor/cuda/device/launch.cuh"

namespace apogee::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kOwn = 16 * kWarps;  // the rows that a block owns
constexpr int kTileRows = 32;      // the rows of a tile of the other side, of both its operands

// The log-sum-exps (in base 2) and D of a tile of queries, and the first key that each sees.
struct Statistics {
  float lse[kTileRows], dot[kTileRows];
  int first_key[kTileRows];
};

// One stage: a tile of both operands with its statistics. There are two stages, so that the next
// tile is loaded while one is worked on.
template <typename T, int kD>
struct Stage {
  alignas(16) T first[kTileRows * kMmaStride<kD>];
  alignas(16) T second[kTileRows * kMmaStride<kD>];
  Statistics statistics;
};
template <typename T, int kD>
struct Shared {
  alignas(16) T first[kOwn * kMmaStride<kD>];
  alignas(16) T second[kOwn * kMmaStride<kD>];
  Stage<T, kD> stages[2];
};

// A block owns keys of one key/value head, and loops over the queries of the heads that read them.
// Scores are kept transposed: keys in rows.
template <typename T, int kD>
__global__ void __launch_bounds__(kWarps* kWarp)
    KeyKernel(const AttentionBackwardArgs __grid_constant__ args, const float* dots, bool vectors) {
  const auto [block, batch, kv_head] = BlockTask::OfKeys(args.batch, args.kv_heads);
  const int64_t group = args.heads / args.kv_heads;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t key0 = block * kOwn, key = key0 + warp * 16 + lane / 4;
  const float scale = static_cast<float>(args.scale * kLog2E);
  const T* const stored = nullptr;  // names the type
  auto& shared = *DynamicShared<Shared<T, kD>>();
  const int own = warp * 16 * kMmaStride<kD>;

  const int64_t first_query = FirstQuery(args, key0);
  const int64_t queries = QueriesEnd(args, batch, first_query, key0 + kOwn - 1);
  const auto tiles_of_head =
      static_cast<int>(max(int64_t{0}, (queries - first_query + kTileRows - 1) / kTileRows));
  const int tiles = static_cast<int>(group) * tiles_of_head;
  const auto query_of = [&](int tile) { return first_query + tile % tiles_of_head * kTileRows; };
  const auto load = [&](int tile, Stage<T, kD>& stage) {
    const int64_t head = kv_head * group + tile / tiles_of_head, query0 = query_of(tile);
    LoadTile<kTileRows, kD, kWarps>(args.q, batch, head, query0, args.q_tokens, args.head_dim,
                                    vectors, stage.first);
    LoadTile<kTileRows, kD, kWarps>(args.dout, batch, head, query0, args.q_tokens, args.head_dim,
                                    vectors, stage.second);
    if (threadIdx.x < kTileRows) {
      const int64_t query = query0 + threadIdx.x, row = StatisticsOf(args, batch, head) + query;
      const bool there = query < args.q_tokens;
      stage.statistics.lse[threadIdx.x] = Log2SumExp<float>(args.lse, row, there);
      stage.statistics.dot[threadIdx.x] = there ? dots[row] : 0;
      stage.statistics.first_key[threadIdx.x] =
          there ? static_cast<int>(min(FirstKey(args, batch, query), args.kv_tokens)) : 0;
    }
  };

  float dk[kD / 8][4] = {}, dv[kD / 8][4] = {};
  LoadTile<kOwn, kD, kWarps>(args.k, batch, kv_head, key0, args.kv_tokens, args.head_dim, vectors,
                             shared.first);
  LoadTile<kOwn, kD, kWarps>(args.v, batch, kv_head, key0, args.kv_tokens, args.head_dim, vectors,
                             shared.second);
  if (tiles > 0) load(0, shared.stages[0]);
  CommitCopies();
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) load(tile + 1, shared.stages[(tile + 1) % 2]);
    CommitCopies();
    WaitCopies<1>();
    __syncthreads();  // this tile has been loaded
    const Stage<T, kD>& stage = shared.stages[tile % 2];
    // Rows of keys beyond the last one need no mask: they are not stored.
    int first[2];  // the first query of the tile that sees the key of each of this lane's rows
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t sees = FirstQuery(args, key + 8 * r) - query_of(tile);
      first[r] = static_cast<int>(max(int64_t{0}, min(sees, int64_t{kTileRows})));
    }
    float weights[kTileRows / 8][4], dscores[kTileRows / 8][4];
    MultiplyRows<kTileRows, kD>(shared.first + own, stage.first, weights);
    MultiplyRows<kTileRows, kD>(shared.second + own, stage.second, dscores);
#pragma unroll
    for (int n = 0; n < kTileRows / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = n * 8 + lane % 4 * 2 + i % 2;
        const bool seen =
            column >= first[i / 2] && key + i / 2 * 8 >= stage.statistics.first_key[column];
        const float weight =
            seen ? Exp2(weights[n][i] * scale - stage.statistics.lse[column]) : 0.0f;
        weights[n][i] = weight;
        dscores[n][i] = seen ? weight * (dscores[n][i] - stage.statistics.dot[column]) : 0.0f;
      }
    }
    AddWeightedRows<kTileRows, kD>(weights, stage.second, dv);
    AddWeightedRows<kTileRows, kD>(dscores, stage.first, dk);
    __syncthreads();  // this tile has been read
  }
  WaitCopies<0>();
  const float dk_scale = static_cast<float>(args.scale);
  StoreRows<kD>(args.dk, args.wide, vectors, batch, kv_head, key, args.kv_tokens, args.head_dim,
                stored, {dk_scale, dk_scale}, dk);
  StoreRows<kD>(args.dv, args.wide, vectors, batch, kv_head, key, args.kv_tokens, args.head_dim,
                stored, {1.0f, 1.0f}, dv);
}

// A block owns queries, and loops over the keys.
template <typename T, int kD>
__global__ void __launch_bounds__(kWarps* kWarp)
    QueryKernel(const AttentionBackwardArgs __grid_constant__ args, const float* dots,
                bool vectors) {
  const auto [block, batch, head] = BlockTask::OfQueries(args);
  const int64_t kv_head = head / (args.heads / args.kv_heads);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t query0 = block * kOwn, query = query0 + warp * 16 + lane / 4;
  const int64_t keys = SeenKeys(args, min(query0 + kOwn, args.q_tokens) - 1);
  const float scale = static_cast<float>(args.scale * kLog2E);
  const T* const stored = nullptr;  // names the type
  auto& shared = *DynamicShared<Shared<T, kD>>();
  const int own = warp * 16 * kMmaStride<kD>;
  const auto load = [&](int64_t key0, Stage<T, kD>& stage) {
    LoadTile<kTileRows, kD, kWarps>(args.k, batch, kv_head, key0, args.kv_tokens, args.head_dim,
                                    vectors, stage.first);
    LoadTile<kTileRows, kD, kWarps>(args.v, batch, kv_head, key0, args.kv_tokens, args.head_dim,
                                    vectors, stage.second);
  };

  float dq[kD / 8][4] = {}, lse[2], dot[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool there = query + 8 * r < args.q_tokens;
    const int64_t row = StatisticsOf(args, batch, head) + query + 8 * r;
    lse[r] = Log2SumExp<float>(args.lse, row, there);
    dot[r] = there ? dots[row] : 0;
  }
  LoadTile<kOwn, kD, kWarps>(args.q, batch, head, query0, args.q_tokens, args.head_dim, vectors,
                             shared.first);
  LoadTile<kOwn, kD, kWarps>(args.dout, batch, head, query0, args.q_tokens, args.head_dim, vectors,
                             shared.second);
  const KeyRange seen_keys[2] = {KeyRange::Of(args, batch, query),
                                 KeyRange::Of(args, batch, query + 8)};
  const int64_t first_key = FirstKeyTile<kTileRows>(args, batch, query0, kOwn);
  if (first_key < keys) load(first_key, shared.stages[first_key / kTileRows % 2]);
  CommitCopies();
  for (int64_t key0 = first_key; key0 < keys; key0 += kTileRows) {
    if (key0 + kTileRows < keys) load(key0 + kTileRows, shared.stages[(key0 / kTileRows + 1) % 2]);
    CommitCopies();
    WaitCopies<1>();
    __syncthreads();  // this tile has been loaded
    const Stage<T, kD>& stage = shared.stages[key0 / kTileRows % 2];
    float scores[kTileRows / 8][4], dscores[kTileRows / 8][4];
    MultiplyRows<kTileRows, kD>(shared.first + own, stage.first, scores);
    MultiplyRows<kTileRows, kD>(shared.second + own, stage.second, dscores);
#pragma unroll
    for (int n = 0; n < kTileRows / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = i / 2, column = n * 8 + lane % 4 * 2 + i % 2;
        const bool seen = seen_keys[r].Has(static_cast<int>(key0) + column);
        const float weight = seen ? Exp2(scores[n][i] * scale - lse[r]) : 0.0f;
        dscores[n][i] = seen ? weight * (dscores[n][i] - dot[r]) : 0.0f;
      }
    }
    AddWeightedRows<kTileRows, kD>(dscores, stage.first, dq);
    __syncthreads();  // this tile has been read
  }
  WaitCopies<0>();
  const float dq_scale = static_cast<float>(args.scale);
  StoreRows<kD>(args.dq, args.wide, vectors, batch, head, query, args.q_tokens, args.head_dim,
                stored, {dq_scale, dq_scale}, dq);
}

template <typename T, int kD>
void AttentionMmaBackward(const DeviceContext& context, const AttentionBackwardArgs& args,
                          const float* dots) {
  const bool vectors =
      TakesVectors(args.head_dim, {args.q, args.k, args.v, args.dout, args.dq, args.dk, args.dv});
  const auto grid = [&](int64_t tokens, int64_t heads) {
    return Grid{.blocks = {static_cast<unsigned>(CeilDiv(tokens, kOwn) * args.batch * heads)},
                .threads = {kWarps * kWarp},
                .shared_bytes = sizeof(Shared<T, kD>),
                .name = "attention_backward"};
  };
  if (const Grid keys = grid(args.kv_tokens, args.kv_heads); keys.blocks.x > 0) {
    Launch(context, keys, &KeyKernel<T, kD>, args, dots, vectors);
  }
  if (const Grid queries = grid(args.q_tokens, args.heads); queries.blocks.x > 0) {
    Launch(context, queries, &QueryKernel<T, kD>, args, dots, vectors);
  }
}

}  // namespace

void AttentionBackwardMma(const DeviceContext& context, const AttentionBackwardArgs& args,
                          const float* dots) {
  DispatchAttentionMma(
      args, [&]<typename T, int kD>() { AttentionMmaBackward<T, kD>(context, args, dots); });
}

}  // namespace apogee::cuda
