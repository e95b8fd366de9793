// SPDX-License-Identifier: Apache-2.0

// Gradients of attention in tiles. The weights P are computed again from the saved log-sum-exp:
//   D_i = sum_d dout_id out_id
//   dP  = dout v^T
//   dS  = P * (dP - D)
// dS is the gradient of the masked scores; that of scores before a soft cap has its slope as a
// factor.
#include <limits>
#include <utility>

#include "apogee/core/parallel.h"
#include "apogee/tensor/cpu/attention/attention_tiles.h"
#include "apogee/tensor/cpu/kernels.h"

namespace apogee::cpu {
namespace {

// Scratch memory of one thread: one key/value head with its gradients, and one tile of queries. The
// suffix _i marks the interleaved form of a tile. If elements are no pairs, it is the same memory
// as the rows.
template <typename E>
struct BackwardScratch {
  using T = Sum<E>;
  E *k, *k_i, *v, *q, *q_i, *qt, *dout, *dout_i, *dout_t, *weights, *dscores, *dscores_i;
  T *dk, *dv, *dq, *scores, *dweights;  // weights and dscores overwrite the last two
  T* slopes = nullptr;                  // of the soft cap, if there is one; dS overwrites them
  T lse[kQueryTile], dot[kQueryTile];   // log-sum-exp in base 2; D

  static int64_t Size(int64_t kv_rows, int64_t ld, bool capped) {  // in elements
    return 5 * kv_rows * ld + 7 * kQueryTile * ld + (capped ? 4 : 3) * kKeyTile * kQueryTile;
  }
  BackwardScratch(E* block, int64_t kv_rows, int64_t ld, bool capped) {
    static_assert(sizeof(E) == sizeof(T));
    const auto take = [&block](int64_t size) { return std::exchange(block, block + size); };
    const auto take_sums = [&take](int64_t size) { return reinterpret_cast<T*>(take(size)); };
    const auto interleaved = [&take](E* rows, int64_t size) {
      return kPack<E> == 1 ? rows : take(size);
    };
    const int64_t kv_size = kv_rows * ld / kPack<E>, q_size = kQueryTile * ld / kPack<E>;
    k = take(kv_size);
    k_i = interleaved(k, kv_size);
    v = take(kv_size);
    q = take(q_size);
    q_i = interleaved(q, q_size);
    qt = take(q_size);
    dout = take(q_size);
    dout_i = interleaved(dout, q_size);
    dout_t = take(q_size);
    dk = take_sums(kv_rows * ld);
    dv = take_sums(kv_rows * ld);
    dq = take_sums(kQueryTile * ld);
    scores = take_sums(kKeyTile * kQueryTile);
    dweights = take_sums(kKeyTile * kQueryTile);
    weights = reinterpret_cast<E*>(scores);
    dscores = reinterpret_cast<E*>(dweights);
    dscores_i = interleaved(dscores, kKeyTile * kQueryTile / kPack<E>);
    if (capped) slopes = take_sums(kKeyTile * kQueryTile);
  }
};

template <typename Stored, typename E>
void LoadQueries(const AttentionBackwardArgs& args, int64_t batch, int64_t head, int64_t query0,
                 int64_t queries, int64_t ld, BackwardScratch<E>& scratch) {
  using T = Sum<E>;
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  const int64_t padded = RoundUpToGroup(queries);
  LoadRows<Stored>(args.q, batch, head, query0, queries, args.head_dim, ld, scratch.q);
  LoadRows<Stored>(args.dout, batch, head, query0, queries, args.head_dim, ld, scratch.dout);
  TransposeTile(scratch.q, padded, ld, scratch.qt);
  TransposeTile(scratch.dout, padded, ld, scratch.dout_t);
  if constexpr (kPack<E> == 2) {
    Interleave(scratch.q, padded, ld, scratch.q_i);
    Interleave(scratch.dout, padded, ld, scratch.dout_i);
  }
  const T* lse =
      static_cast<const T*>(args.lse) + (batch * args.heads + head) * args.q_tokens + query0;
  // Padding, and queries that see no key, get weights of 0: 2^(s - inf) = 0.
  std::fill_n(scratch.lse, kQueryTile, kInfinity);
  std::fill_n(scratch.dot, kQueryTile, T{0});
  for (int64_t i = 0; i < queries; ++i) {
    const Stored* out = Row<Stored>(args.out, batch, head, query0 + i);
    const Stored* dout = Row<Stored>(args.dout, batch, head, query0 + i);
    T dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t d = 0; d < args.head_dim; ++d)
      dot += static_cast<T>(out[d]) * static_cast<T>(dout[d]);
    scratch.dot[i] = dot;
    if (lse[i] != -kInfinity) scratch.lse[i] = lse[i] * static_cast<T>(kLog2E);
  }
}

// Turns the scores and dP of kLanes<T> queries into P and the gradients of the scores. Elements
// beyond `limit` that a product over whole groups of keys reads become 0. The results overwrite
// scores and dP, but only elements that have been read already.
template <bool kCapped, typename E, typename T>
void SoftmaxBackwardColumn(BackwardScratch<E>& scratch, T scale, int64_t query, int64_t lane0,
                           int64_t first, int64_t limit) {
  const Vec<T> lse = Load(scratch.lse + query), dot = Load(scratch.dot + query);
  const int64_t unmasked = std::clamp<int64_t>(first, 0, limit);
  for (int64_t j = 0; j < RoundUpToGroup(limit); j += kPack<E>) {
    Vec<T> dscores[kPack<E>];
    for (int64_t r = 0; r < kPack<E>; ++r) {
      const int64_t key = j + r, row = key * kQueryTile;
      Vec<T> p{};
      dscores[r] = p;
      if (key < limit) {
        p = Exp2(Load(scratch.scores + row + query) * scale - lse);
        if (key >= unmasked) p = VisibleLanes<T>(key, first, lane0) ? p : Vec<T>{};
        dscores[r] = p * (Load(scratch.dweights + row + query) - dot);
        if constexpr (kCapped) {
          const Vec<T> slope = Load(scratch.slopes + row + query);
          Store(scratch.slopes + row + query, dscores[r]);
          dscores[r] *= slope;
        }
      }
      Packing<E>::StoreRow(scratch.weights + row + query / kPack<E>, p);
      Packing<E>::StoreRow(scratch.dscores + row + query / kPack<E>, dscores[r]);
    }
    if constexpr (kPack<E> == 2) {
      Packing<E>::StoreColumns(scratch.dscores_i + j / 2 * kQueryTile + query, dscores);
    }
  }
}

// The gradients dS of a tile, in rows `ld` elements apart, as those of the mask.
template <typename Stored, typename Element>
void StoreMaskGradient(const AttentionBackwardArgs& args, const TileMask& tile, int64_t batch,
                       int64_t head, int64_t query0, int64_t queries, int64_t key0,
                       const Element* dscores, int64_t ld) {
  for (int64_t i = 0; i < queries; ++i) {
    Stored* row = static_cast<Stored*>(args.dmask) +
                  ((batch * args.heads + head) * args.q_tokens + query0 + i) * args.kv_tokens +
                  key0;
    for (int64_t j = 0; j < tile.limit[i / kGroup]; ++j) {
      row[j] = static_cast<Stored>(static_cast<ComputeType<Element>>(dscores[j * ld + i]));
    }
  }
}

template <typename Stored, typename E>
void BackwardTile(const AttentionBackwardArgs& args, int64_t batch, int64_t head, int64_t query0,
                  int64_t ld, BackwardScratch<E>& scratch) {
  using T = Sum<E>;
  const int64_t queries = std::min(kQueryTile, args.q_tokens - query0);
  const bool capped = args.soft_cap != 0;
  const T scale = static_cast<T>(args.scale * kLog2E);
  LoadQueries<Stored>(args, batch, head, query0, queries, ld, scratch);
  std::fill_n(scratch.dq, RoundUpToGroup(queries) * ld, T{0});
  const FirstKeysOfTile first(args, batch, query0, queries);
  for (int64_t key0 = first.key_tile(); key0 < args.kv_tokens; key0 += kKeyTile) {
    const TileMask mask(args, query0, queries, key0, std::min(kKeyTile, args.kv_tokens - key0));
    if (mask.empty()) break;
    const int64_t at = key0 * ld / kPack<E>;
    ScoreProduct(mask, scratch.k + at, scratch.qt, ld, scratch.scores);
    if (capped) CapScores<T>(args, mask, scratch.scores, scratch.slopes);
    MaskScores<Stored>(args, first, batch, head, query0, queries, key0, mask.keys, scratch.scores);
    ScoreProduct(mask, scratch.v + at, scratch.dout_t, ld, scratch.dweights);
    for (int64_t g = 0; g < mask.groups; ++g) {
      for (int64_t lane = 0; lane < kGroup; lane += kLanes<T>) {
        const int64_t query = g * kGroup + lane;
        if (capped) {
          SoftmaxBackwardColumn<true>(scratch, scale, query, lane, mask.first[g], mask.limit[g]);
        } else {
          SoftmaxBackwardColumn<false>(scratch, scale, query, lane, mask.first[g], mask.limit[g]);
        }
      }
    }
    if (args.dmask != nullptr && capped) {
      StoreMaskGradient<Stored>(args, mask, batch, head, query0, queries, key0, scratch.slopes,
                                kQueryTile);
    } else if (args.dmask != nullptr) {
      using Element = std::conditional_t<std::is_same_v<E, Bf16Pair>, BFloat16, E>;
      StoreMaskGradient<Stored>(args, mask, batch, head, query0, queries, key0,
                                reinterpret_cast<const Element*>(scratch.dscores),
                                kQueryTile * kPack<E>);
    }
    AddKeyProduct(mask, scratch.weights, scratch.dout_i, ld, scratch.dv + key0 * ld);
    AddKeyProduct(mask, scratch.dscores, scratch.q_i, ld, scratch.dk + key0 * ld);
    AddQueryProduct(mask, scratch.dscores_i, scratch.k_i + at, ld, scratch.dq);
  }
  for (int64_t i = 0; i < queries; ++i) {
    StoreResult<Stored>(args.wide, scratch.dq + i * ld, static_cast<T>(args.scale), args.dq, batch,
                        head, query0 + i, args.head_dim);
  }
}

template <typename Stored>
void Backward(const DeviceContext& context, const AttentionBackwardArgs& args) {
  using E = TileElement<Stored>;
  using T = Sum<E>;
  const int64_t ld = PaddedHeadDim<E>(args.head_dim);
  const int64_t kv_rows = RoundUpToGroup(args.kv_tokens);
  const int64_t group = args.heads / args.kv_heads;
  // One thread adds up the gradients of all query heads of a key/value head, in order.
  const int64_t count = args.batch * args.kv_heads;
  const int64_t parts = std::min<int64_t>(count, context.num_threads());
  const bool capped = args.soft_cap != 0;
  const int64_t size = BackwardScratch<E>::Size(kv_rows, ld, capped);
  const Workspace workspace(context, parts * size * static_cast<int64_t>(sizeof(E)));
  ParallelFor(context, parts, 1, [&](int64_t begin, int64_t end) {
    BackwardScratch<E> scratch(workspace.data<E>() + begin * size, kv_rows, ld, capped);
    for (int64_t task = count * begin / parts; task < count * end / parts; ++task) {
      const int64_t batch = task / args.kv_heads, kv_head = task % args.kv_heads;
      LoadRows<Stored>(args.k, batch, kv_head, 0, args.kv_tokens, args.head_dim, ld, scratch.k);
      LoadRows<Stored>(args.v, batch, kv_head, 0, args.kv_tokens, args.head_dim, ld, scratch.v);
      if constexpr (kPack<E> == 2) Interleave(scratch.k, kv_rows, ld, scratch.k_i);
      std::fill_n(scratch.dk, kv_rows * ld, T{0});
      std::fill_n(scratch.dv, kv_rows * ld, T{0});
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        for (int64_t query = 0; query < args.q_tokens; query += kQueryTile) {
          BackwardTile<Stored>(args, batch, head, query, ld, scratch);
        }
      }
      for (int64_t j = 0; j < args.kv_tokens; ++j) {
        StoreResult<Stored>(args.wide, scratch.dk + j * ld, static_cast<T>(args.scale), args.dk,
                            batch, kv_head, j, args.head_dim);
        StoreResult<Stored>(args.wide, scratch.dv + j * ld, T{1}, args.dv, batch, kv_head, j,
                            args.head_dim);
      }
    }
  });
}

}  // namespace

void attention_backward(const DeviceContext& context, const AttentionBackwardArgs& args) {
  DispatchFloat(args.dtype, "attention_backward",
                [&]<typename Stored>() { Backward<Stored>(context, args); });
}

}  // namespace apogee::cpu
