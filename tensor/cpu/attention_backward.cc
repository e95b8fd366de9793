// Gradients of attention in tiles: the weights P are computed again from the saved log-sum-exp. With
// D_i = sum_d dout_id out_id, dS = P * (dP - D), where dP = dout v^T.
#include <limits>

#include "apogee/core/parallel.h"
#include "apogee/tensor/cpu/attention_tiles.h"
#include "apogee/tensor/cpu/kernels.h"

namespace apogee::cpu {
namespace {

// Scratch of one thread: one key/value head with its gradients, and one tile of queries.
template <typename T>
struct BackwardScratch {
  T *k, *v, *dk, *dv, *q, *qt, *dout, *dout_t, *dq, *weights, *dscores;
  T lse[kQueryTile], dot[kQueryTile];  // log-sum-exp in units of log2; D

  static int64_t Size(int64_t kv_rows, int64_t ld) {
    return 4 * kv_rows * ld + 5 * kQueryTile * ld + 2 * kKeyTile * kQueryTile;
  }
  BackwardScratch(T* block, int64_t kv_rows, int64_t ld)
      : k(block),
        v(k + kv_rows * ld),
        dk(v + kv_rows * ld),
        dv(dk + kv_rows * ld),
        q(dv + kv_rows * ld),
        qt(q + kQueryTile * ld),
        dout(qt + kQueryTile * ld),
        dout_t(dout + kQueryTile * ld),
        dq(dout_t + kQueryTile * ld),
        weights(dq + kQueryTile * ld),
        dscores(weights + kKeyTile * kQueryTile) {}
};

template <typename Stored, typename T>
void LoadQueries(const AttentionBackwardArgs& args, int64_t batch, int64_t head, int64_t query0,
                 int64_t queries, int64_t ld, BackwardScratch<T>& scratch) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  const int64_t padded = RoundUpToGroup(queries);
  LoadRows<Stored>(args.dout, batch, head, query0, queries, args.head_dim, ld, scratch.dout);
  LoadRows<Stored>(args.out, batch, head, query0, queries, args.head_dim, ld, scratch.q);
  const T* lse = static_cast<const T*>(args.lse) + (batch * args.heads + head) * args.q_tokens +
                 query0;
  for (int64_t i = 0; i < padded; ++i) {
    Vec<T> dot{};
    for (int64_t d = 0; d < ld; d += kLanes<T>) {
      dot += Load(scratch.dout + i * ld + d) * Load(scratch.q + i * ld + d);
    }
    scratch.dot[i] = 0;
    for (int lane = 0; lane < kLanes<T>; ++lane) scratch.dot[i] += dot[lane];
    // Padding, and queries that see no key, have no weights: 2^(s - inf) = 0.
    const bool seen = i < queries && lse[i] != -kInfinity;
    scratch.lse[i] = seen ? lse[i] * static_cast<T>(kLog2E) : kInfinity;
  }
  LoadRows<Stored>(args.q, batch, head, query0, queries, args.head_dim, ld, scratch.q);
  Transpose(scratch.q, ld, padded, ld, static_cast<T>(args.scale * kLog2E), scratch.qt, kQueryTile);
  Transpose(scratch.dout, ld, padded, ld, T{1}, scratch.dout_t, kQueryTile);
}

// Scores and dP of kLanes<T> queries become P and dS; what a product over whole groups of keys reads
// beyond `limit` becomes 0.
template <typename T>
void SoftmaxBackwardColumn(BackwardScratch<T>& scratch, int64_t query, int64_t lane0, int64_t first,
                           int64_t limit) {
  T* weights = scratch.weights + query;
  T* dscores = scratch.dscores + query;
  const Vec<T> lse = Load(scratch.lse + query), dot = Load(scratch.dot + query);
  const int64_t unmasked = std::clamp<int64_t>(first, 0, limit);
  for (int64_t j = 0; j < limit; ++j) {
    Vec<T> p = Exp2(Load(weights + j * kQueryTile) - lse);
    if (j >= unmasked) p = Iota<T>() > static_cast<T>(j - first - lane0) ? p : Vec<T>{};
    Store(weights + j * kQueryTile, p);
    Store(dscores + j * kQueryTile, p * (Load(dscores + j * kQueryTile) - dot));
  }
  for (int64_t j = limit; j < RoundUpToGroup(limit); ++j) {
    Store(weights + j * kQueryTile, Vec<T>{});
    Store(dscores + j * kQueryTile, Vec<T>{});
  }
}

template <typename Stored, typename T>
void BackwardTile(const AttentionBackwardArgs& args, int64_t batch, int64_t head, int64_t query0,
                  int64_t ld, BackwardScratch<T>& scratch) {
  const int64_t queries = std::min(kQueryTile, args.q_tokens - query0);
  LoadQueries<Stored>(args, batch, head, query0, queries, ld, scratch);
  std::fill_n(scratch.dq, RoundUpToGroup(queries) * ld, T{0});
  for (int64_t key0 = 0; key0 < args.kv_tokens; key0 += kKeyTile) {
    const TileMask mask(args, query0, queries, key0, std::min(kKeyTile, args.kv_tokens - key0));
    if (mask.empty()) break;
    const T* k = scratch.k + key0 * ld;
    ScoreProduct(mask, k, ld, scratch.qt, args.head_dim, scratch.weights);
    ScoreProduct(mask, scratch.v + key0 * ld, ld, scratch.dout_t, args.head_dim, scratch.dscores);
    for (int64_t g = 0; g < mask.groups; ++g) {
      for (int64_t lane = 0; lane < kGroup; lane += kLanes<T>) {
        SoftmaxBackwardColumn(scratch, g * kGroup + lane, lane, mask.first[g], mask.limit[g]);
      }
    }
    AddKeyProduct(mask, scratch.weights, scratch.dout, ld, scratch.dv + key0 * ld);
    AddKeyProduct(mask, scratch.dscores, scratch.q, ld, scratch.dk + key0 * ld);
    AddQueryProduct(mask, scratch.dscores, k, ld, scratch.dq, true);
  }
  for (int64_t i = 0; i < queries; ++i) {
    StoreRow<Stored>(scratch.dq + i * ld, static_cast<T>(args.scale), args.dq, batch, head,
                     query0 + i, args.head_dim);
  }
}

template <typename Stored>
void Backward(const DeviceContext& context, const AttentionBackwardArgs& args) {
  using T = ComputeType<Stored>;
  const int64_t ld = RoundUpToGroup(args.head_dim), kv_rows = RoundUpToGroup(args.kv_tokens);
  const int64_t group = args.heads / args.kv_heads;
  // The query heads of a key/value head add up their gradients in order, in one thread.
  const int64_t count = args.batch * args.kv_heads;
  const int64_t parts = std::min<int64_t>(count, context.num_threads());
  const int64_t size = BackwardScratch<T>::Size(kv_rows, ld);
  const Workspace workspace(context, parts * size * static_cast<int64_t>(sizeof(T)));
  ParallelFor(static_cast<int>(parts), parts, 1, [&](int64_t begin, int64_t end) {
    BackwardScratch<T> scratch(workspace.data<T>() + begin * size, kv_rows, ld);
    for (int64_t task = count * begin / parts; task < count * end / parts; ++task) {
      const int64_t batch = task / args.kv_heads, kv_head = task % args.kv_heads;
      LoadRows<Stored>(args.k, batch, kv_head, 0, args.kv_tokens, args.head_dim, ld, scratch.k);
      LoadRows<Stored>(args.v, batch, kv_head, 0, args.kv_tokens, args.head_dim, ld, scratch.v);
      std::fill_n(scratch.dk, kv_rows * ld, T{0});
      std::fill_n(scratch.dv, kv_rows * ld, T{0});
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        for (int64_t query = 0; query < args.q_tokens; query += kQueryTile) {
          BackwardTile<Stored>(args, batch, head, query, ld, scratch);
        }
      }
      for (int64_t j = 0; j < args.kv_tokens; ++j) {
        StoreRow<Stored>(scratch.dk + j * ld, static_cast<T>(args.scale), args.dk, batch, kv_head, j,
                         args.head_dim);
        StoreRow<Stored>(scratch.dv + j * ld, T{1}, args.dv, batch, kv_head, j, args.head_dim);
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
