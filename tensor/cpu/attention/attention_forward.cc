// SPDX-License-Identifier: Apache-2.0

// Attention in tiles with a running softmax (Dao et al., FlashAttention, arXiv:2205.14135).
#include <limits>
#include <utility>

#include "apogee/core/parallel.h"
#include "apogee/tensor/cpu/attention/attention_rows.h"
#include "apogee/tensor/cpu/attention/attention_tiles.h"
#include "apogee/tensor/cpu/kernels.h"

namespace apogee::cpu {
namespace {

// Scratch memory of one thread: one head's keys and values, and one tile of queries.
template <typename E>
struct ForwardScratch {
  using T = Sum<E>;
  E *k, *v, *v_rows, *q_rows, *qt, *weights;                // v and weights are interleaved
  T *sums, *scores;                                         // weights overwrite scores
  T max[kQueryTile], total[kQueryTile], decay[kQueryTile];  // of scores in base 2

  // In elements.
  static int64_t Size(int64_t kv_rows, int64_t ld) {
    return (kPack<E> + 1) * kv_rows * ld / kPack<E> + 3 * kQueryTile * ld + kKeyTile * kQueryTile;
  }
  ForwardScratch(E* block, int64_t kv_rows, int64_t ld) {
    static_assert(sizeof(E) == sizeof(T));
    const auto take = [&block](int64_t size) { return std::exchange(block, block + size); };
    k = take(kv_rows * ld / kPack<E>);
    v = take(kv_rows * ld / kPack<E>);
    v_rows = kPack<E> == 1 ? v : take(kv_rows * ld / kPack<E>);
    q_rows = take(kQueryTile * ld);
    qt = take(kQueryTile * ld);
    sums = reinterpret_cast<T*>(take(kQueryTile * ld));
    weights = take(kKeyTile * kQueryTile);
    scores = reinterpret_cast<T*>(weights);
  }
};

// Turns the scores of kLanes<T> queries into weights relative to the new running maximum.
template <typename E, typename T>
void SoftmaxColumn(ForwardScratch<E>& scratch, T scale, int64_t query, int64_t lane0, int64_t first,
                   int64_t limit) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  T* column = scratch.scores + query;
  const Vec<T> old_max = Load(scratch.max + query);
  Vec<T> max = old_max;
  const int64_t unmasked = std::clamp<int64_t>(first, 0, limit);
  for (int64_t j = 0; j < unmasked; ++j) {
    const Vec<T> s = Load(column + j * kQueryTile) * scale;
    max = s > max ? s : max;
  }
  for (int64_t j = unmasked; j < limit; ++j) {
    const Vec<T> s = Load(column + j * kQueryTile) * scale;
    const Vec<T> masked = VisibleLanes<T>(j, first, lane0) ? s : Splat(-kInfinity);
    max = masked > max ? masked : max;
  }
  // A query that has seen no key has a maximum of -inf; subtracting that would give NaN.
  const Vec<T> base = max == -kInfinity ? Vec<T>{} : max;
  const Vec<T> decay = Exp2(old_max - base);
  Vec<T> total = Load(scratch.total + query) * decay;
  for (int64_t j = 0; j < limit; j += kPack<E>) {
    Vec<T> p[kPack<E>];
    for (int64_t r = 0; r < kPack<E>; ++r) {
      const int64_t key = j + r;
      p[r] = Vec<T>{};
      if (key < limit) p[r] = Exp2(Load(column + key * kQueryTile) * scale - base);
      if (key >= unmasked) p[r] = VisibleLanes<T>(key, first, lane0) ? p[r] : Vec<T>{};
      total += p[r];
    }
    Packing<E>::StoreColumns(scratch.weights + query + j / kPack<E> * kQueryTile, p);
  }
  Store(scratch.max + query, max);
  Store(scratch.total + query, total);
  Store(scratch.decay + query, decay);
}

template <typename T>
void ScaleRows(const T* scale, int64_t rows, int64_t ld, T* x) {
  for (int64_t i = 0; i < rows; ++i) {
    if (scale[i] == 1) continue;
    for (int64_t d = 0; d < ld; d += kLanes<T>)
      Store(x + i * ld + d, Load(x + i * ld + d) * scale[i]);
  }
}

template <typename Stored, typename E>
void ForwardTile(const AttentionForwardArgs& args, int64_t batch, int64_t head, int64_t query0,
                 int64_t ld, ForwardScratch<E>& scratch) {
  using T = Sum<E>;
  const int64_t queries = std::min(kQueryTile, args.q_tokens - query0);
  const int64_t padded = RoundUpToGroup(queries);
  LoadRows<Stored>(args.q, batch, head, query0, queries, args.head_dim, ld, scratch.q_rows);
  TransposeTile(scratch.q_rows, padded, ld, scratch.qt);
  std::fill_n(scratch.max, kQueryTile, -std::numeric_limits<T>::infinity());
  std::fill_n(scratch.total, kQueryTile, T{0});
  std::fill_n(scratch.sums, padded * ld, T{0});
  const FirstKeysOfTile first(args, batch, query0, queries);
  for (int64_t key0 = first.key_tile(); key0 < args.kv_tokens; key0 += kKeyTile) {
    const TileMask mask(args, query0, queries, key0, std::min(kKeyTile, args.kv_tokens - key0));
    if (mask.empty()) break;
    ScoreProduct(mask, scratch.k + key0 * ld / kPack<E>, scratch.qt, ld, scratch.scores);
    if (args.soft_cap != 0) CapScores<T>(args, mask, scratch.scores, nullptr);
    MaskScores<Stored>(args, first, batch, head, query0, queries, key0, mask.keys, scratch.scores);
    for (int64_t g = 0; g < mask.groups; ++g) {
      for (int64_t lane = 0; lane < kGroup; lane += kLanes<T>) {
        SoftmaxColumn(scratch, static_cast<T>(args.scale * kLog2E), g * kGroup + lane, lane,
                      mask.first[g], mask.limit[g]);
      }
    }
    if (key0 > 0) ScaleRows(scratch.decay, padded, ld, scratch.sums);
    AddQueryProduct(mask, scratch.weights, scratch.v + key0 * ld / kPack<E>, ld, scratch.sums);
  }
  T* lse = static_cast<T*>(args.lse) + (batch * args.heads + head) * args.q_tokens + query0;
  for (int64_t i = 0; i < queries; ++i) {
    const T total = scratch.total[i];
    lse[i] = (scratch.max[i] + std::log2(total)) * static_cast<T>(kLn2);
    StoreResult<Stored>(args.wide, scratch.sums + i * ld, total > 0 ? 1 / total : total, args.out,
                        batch, head, query0 + i, args.head_dim);
  }
}

template <typename Stored>
void Forward(const DeviceContext& context, const AttentionForwardArgs& args) {
  using E = TileElement<Stored>;
  const int64_t ld = PaddedHeadDim<E>(args.head_dim);
  const int64_t kv_rows = RoundUpToGroup(args.kv_tokens);
  const int64_t count = args.batch * args.heads;
  const int64_t parts = std::min<int64_t>(count, context.num_threads());
  const int64_t size = ForwardScratch<E>::Size(kv_rows, ld);
  const Workspace workspace(context, parts * size * static_cast<int64_t>(sizeof(E)));
  ParallelFor(context, parts, 1, [&](int64_t begin, int64_t end) {
    ForwardScratch<E> scratch(workspace.data<E>() + begin * size, kv_rows, ld);
    int64_t loaded = -1;  // the key/value head in scratch; query heads that share it come in a row
    for (int64_t task = count * begin / parts; task < count * end / parts; ++task) {
      const int64_t batch = task / args.heads, head = task % args.heads;
      const int64_t kv_head = head / (args.heads / args.kv_heads);
      if (const int64_t kv = batch * args.kv_heads + kv_head; kv != loaded) {
        LoadRows<Stored>(args.k, batch, kv_head, 0, args.kv_tokens, args.head_dim, ld, scratch.k);
        LoadRows<Stored>(args.v, batch, kv_head, 0, args.kv_tokens, args.head_dim, ld,
                         scratch.v_rows);
        if constexpr (kPack<E> == 2) Interleave(scratch.v_rows, kv_rows, ld, scratch.v);
        loaded = kv;
      }
      for (int64_t query = 0; query < args.q_tokens; query += kQueryTile) {
        ForwardTile<Stored>(args, batch, head, query, ld, scratch);
      }
    }
  });
}

}  // namespace

void attention_forward(const DeviceContext& context, const AttentionForwardArgs& args) {
  if (HasFewQueries(args)) return AttendRows(context, args);
  DispatchFloat(args.dtype, "attention_forward",
                [&]<typename Stored>() { Forward<Stored>(context, args); });
}

}  // namespace apogee::cpu
