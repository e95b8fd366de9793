// Attention in tiles with a running softmax (Dao et al., FlashAttention, arXiv:2205.14135).
#include <limits>

#include "apogee/core/parallel.h"
#include "apogee/tensor/cpu/attention_tiles.h"
#include "apogee/tensor/cpu/kernels.h"

namespace apogee::cpu {
namespace {

// Scratch of one thread: one head's keys and values, and one tile of queries.
template <typename T>
struct ForwardScratch {
  T *k, *v, *qt, *sums, *scores;
  T max[kQueryTile], total[kQueryTile], decay[kQueryTile];  // of scores in units of log2

  static int64_t Size(int64_t kv_rows, int64_t ld) {
    return 2 * kv_rows * ld + 2 * kQueryTile * ld + kKeyTile * kQueryTile;
  }
  ForwardScratch(T* block, int64_t kv_rows, int64_t ld)
      : k(block),
        v(k + kv_rows * ld),
        qt(v + kv_rows * ld),
        sums(qt + kQueryTile * ld),
        scores(sums + kQueryTile * ld) {}
};

// Turns the scores of kLanes<T> queries into weights relative to the new running maximum.
template <typename T>
void SoftmaxColumn(ForwardScratch<T>& scratch, int64_t query, int64_t lane0, int64_t first,
                   int64_t limit) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  T* column = scratch.scores + query;
  const Vec<T> old_max = Load(scratch.max + query);
  Vec<T> max = old_max;
  const int64_t unmasked = std::clamp<int64_t>(first, 0, limit);
  for (int64_t j = 0; j < unmasked; ++j) {
    const Vec<T> s = Load(column + j * kQueryTile);
    max = s > max ? s : max;
  }
  for (int64_t j = unmasked; j < limit; ++j) {
    const auto visible = Iota<T>() > static_cast<T>(j - first - lane0);
    const Vec<T> s = visible ? Load(column + j * kQueryTile) : Splat(-kInfinity);
    Store(column + j * kQueryTile, s);
    max = s > max ? s : max;
  }
  // A query that has seen no key yet keeps a maximum of -inf, which must not be subtracted.
  const Vec<T> base = max == -kInfinity ? Vec<T>{} : max;
  const Vec<T> decay = Exp2(old_max - base);
  Vec<T> total = Load(scratch.total + query) * decay;
  for (int64_t j = 0; j < limit; ++j) {
    const Vec<T> p = Exp2(Load(column + j * kQueryTile) - base);
    Store(column + j * kQueryTile, p);
    total += p;
  }
  Store(scratch.max + query, max);
  Store(scratch.total + query, total);
  Store(scratch.decay + query, decay);
}

template <typename T>
void ScaleRows(const T* scale, int64_t rows, int64_t ld, T* x) {
  for (int64_t i = 0; i < rows; ++i) {
    if (scale[i] == 1) continue;
    for (int64_t d = 0; d < ld; d += kLanes<T>) Store(x + i * ld + d, Load(x + i * ld + d) * scale[i]);
  }
}

template <typename Stored, typename T>
void ForwardTile(const AttentionForwardArgs& args, int64_t batch, int64_t head, int64_t query0,
                 int64_t ld, ForwardScratch<T>& scratch) {
  const int64_t queries = std::min(kQueryTile, args.q_tokens - query0);
  const int64_t padded = RoundUpToGroup(queries);
  LoadRows<Stored>(args.q, batch, head, query0, queries, args.head_dim, ld, scratch.sums);
  Transpose(scratch.sums, ld, padded, ld, static_cast<T>(args.scale * kLog2E), scratch.qt,
            kQueryTile);
  std::fill_n(scratch.max, kQueryTile, -std::numeric_limits<T>::infinity());
  std::fill_n(scratch.total, kQueryTile, T{0});
  std::fill_n(scratch.sums, padded * ld, T{0});
  for (int64_t key0 = 0; key0 < args.kv_tokens; key0 += kKeyTile) {
    const TileMask mask(args, query0, queries, key0, std::min(kKeyTile, args.kv_tokens - key0));
    if (mask.empty()) break;
    ScoreProduct(mask, scratch.k + key0 * ld, ld, scratch.qt, args.head_dim, scratch.scores);
    for (int64_t g = 0; g < mask.groups; ++g) {
      for (int64_t lane = 0; lane < kGroup; lane += kLanes<T>) {
        SoftmaxColumn(scratch, g * kGroup + lane, lane, mask.first[g], mask.limit[g]);
      }
    }
    if (key0 > 0) ScaleRows(scratch.decay, padded, ld, scratch.sums);
    AddQueryProduct(mask, scratch.scores, scratch.v + key0 * ld, ld, scratch.sums, key0 > 0);
  }
  T* lse = static_cast<T*>(args.lse) + (batch * args.heads + head) * args.q_tokens + query0;
  for (int64_t i = 0; i < queries; ++i) {
    const T total = scratch.total[i];
    lse[i] = (scratch.max[i] + std::log2(total)) * static_cast<T>(kLn2);
    StoreRow<Stored>(scratch.sums + i * ld, total > 0 ? 1 / total : total, args.out, batch, head,
                     query0 + i, args.head_dim);
  }
}

template <typename Stored>
void Forward(const DeviceContext& context, const AttentionForwardArgs& args) {
  using T = ComputeType<Stored>;
  const int64_t ld = RoundUpToGroup(args.head_dim), kv_rows = RoundUpToGroup(args.kv_tokens);
  const int64_t count = args.batch * args.heads;
  const int64_t parts = std::min<int64_t>(count, context.num_threads());
  const int64_t size = ForwardScratch<T>::Size(kv_rows, ld);
  const Workspace workspace(context, parts * size * static_cast<int64_t>(sizeof(T)));
  ParallelFor(static_cast<int>(parts), parts, 1, [&](int64_t begin, int64_t end) {
    ForwardScratch<T> scratch(workspace.data<T>() + begin * size, kv_rows, ld);
    int64_t loaded = -1;  // the query heads of a group follow each other and share keys and values
    for (int64_t task = count * begin / parts; task < count * end / parts; ++task) {
      const int64_t batch = task / args.heads, head = task % args.heads;
      const int64_t kv_head = head / (args.heads / args.kv_heads);
      if (const int64_t kv = batch * args.kv_heads + kv_head; kv != loaded) {
        LoadRows<Stored>(args.k, batch, kv_head, 0, args.kv_tokens, args.head_dim, ld, scratch.k);
        LoadRows<Stored>(args.v, batch, kv_head, 0, args.kv_tokens, args.head_dim, ld, scratch.v);
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
  DispatchFloat(args.dtype, "attention_forward",
                [&]<typename Stored>() { Forward<Stored>(context, args); });
}

}  // namespace apogee::cpu
