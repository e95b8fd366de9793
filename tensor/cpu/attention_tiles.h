// What attention's forward and backward share. Private to tensor/cpu.
//
// Scores are kept transposed: a tile has keys in rows and queries in columns, so that the softmax over
// the keys of a query runs lane by lane. Queries come in groups of kGroup; the causal mask is applied by
// leaving out the part of a product that no query of a group sees, and by masking elements only between
// what the first and the last query of a group see.
#ifndef APOGEE_TENSOR_CPU_ATTENTION_TILES_H_
#define APOGEE_TENSOR_CPU_ATTENTION_TILES_H_

#include <algorithm>

#include "apogee/core/dtype.h"
#include "apogee/tensor/cpu/tile_product.h"
#include "apogee/tensor/kernels/args.h"

namespace apogee::cpu {

inline constexpr int64_t kGroup = 16;
inline constexpr int64_t kQueryTile = 64;
inline constexpr int64_t kKeyTile = 64;
inline constexpr int64_t kQueryGroups = kQueryTile / kGroup;

inline int64_t RoundUpToGroup(int64_t n) { return (n + kGroup - 1) / kGroup * kGroup; }

inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr double kLn2 = 0.6931471805599453;

// Which of the `num_keys` keys from key0 on the queries from query0 on see.
struct TileMask {
  int64_t groups;                // of kGroup queries, the last perhaps padded
  int64_t keys;                  // in the tile
  int64_t first[kQueryGroups];   // keys that the group's first query sees; may be negative or > keys
  int64_t limit[kQueryGroups];   // keys that its last query sees, in [0, keys]; ascending

  template <typename Args>
  TileMask(const Args& args, int64_t query0, int64_t num_queries, int64_t key0, int64_t num_keys)
      : groups(RoundUpToGroup(num_queries) / kGroup), keys(num_keys) {
    for (int64_t g = 0; g < groups; ++g) {
      first[g] = args.causal
                     ? query0 + g * kGroup + args.kv_tokens - args.q_tokens - key0 + 1
                     : num_keys;
      limit[g] = args.causal ? std::clamp<int64_t>(first[g] + kGroup - 1, 0, num_keys) : num_keys;
    }
  }
  bool empty() const { return limit[groups - 1] == 0; }
  // The first group that sees any of the kGroup keys from `key` on.
  int64_t FirstGroup(int64_t key) const {
    int64_t g = 0;
    while (g < groups && limit[g] <= key) ++g;
    return g;
  }
  // Calls fn(key, num_keys, group): groups [group, groups) see (part of) the keys from `key` on.
  template <typename Fn>
  void ForEachKeyRun(const Fn& fn) const {
    for (int64_t key = 0, next = 0; key < keys; key = next) {
      const int64_t group = FirstGroup(key);
      if (group == groups) return;
      for (next = key + kGroup; next < keys && FirstGroup(next) == group;) next += kGroup;
      fn(key, next - key, group);
    }
  }
};

// scores[key, query] = sum_d x[key, d] yt[d, query], where visible.
template <typename T>
void ScoreProduct(const TileMask& mask, const T* x, int64_t ld, const T* yt, int64_t head_dim,
                  T* scores) {
  mask.ForEachKeyRun([&](int64_t key, int64_t num_keys, int64_t group) {
    const int64_t query = group * kGroup;
    TileProduct<T, false>(x + key * ld, ld, yt + query, kQueryTile,
                          scores + key * kQueryTile + query, kQueryTile, num_keys,
                          mask.groups * kGroup - query, head_dim, false);
  });
}

// sums[key, d] += sum_query scores[key, query] y[query, d]; masked scores are 0.
template <typename T>
void AddKeyProduct(const TileMask& mask, const T* scores, const T* y, int64_t ld, T* sums) {
  mask.ForEachKeyRun([&](int64_t key, int64_t num_keys, int64_t group) {
    const int64_t query = group * kGroup;
    TileProduct<T, false>(scores + key * kQueryTile + query, kQueryTile, y + query * ld, ld,
                          sums + key * ld, ld, num_keys, ld, mask.groups * kGroup - query, true);
  });
}

// sums[query, d] (+)= sum_key scores[key, query] x[key, d].
template <typename T>
void AddQueryProduct(const TileMask& mask, const T* scores, const T* x, int64_t ld, T* sums,
                     bool accumulate) {
  for (int64_t g = 0, next = 0; g < mask.groups; g = next) {
    for (next = g + 1; next < mask.groups && mask.limit[next] == mask.limit[g];) ++next;
    TileProduct<T, true>(scores + g * kGroup, kQueryTile, x, ld, sums + g * kGroup * ld, ld,
                         (next - g) * kGroup, ld, mask.limit[g], accumulate);
  }
}

// Rows of one head, converted to the compute type and padded with zeros to RoundUpToGroup(rows) × ld.
template <typename Stored, typename T>
void LoadRows(const AttentionOperand& x, int64_t batch, int64_t head, int64_t token, int64_t rows,
              int64_t head_dim, int64_t ld, T* tile) {
  const Stored* from = static_cast<const Stored*>(x.data) + batch * x.batch_stride +
                       head * x.head_stride + token * x.token_stride;
  for (int64_t i = 0; i < rows; ++i) {
    const Stored* row = from + i * x.token_stride;
    T* to = tile + i * ld;
#pragma omp simd
    for (int64_t d = 0; d < head_dim; ++d) to[d] = static_cast<T>(row[d]);
    std::fill(to + head_dim, to + ld, T{0});
  }
  std::fill(tile + rows * ld, tile + RoundUpToGroup(rows) * ld, T{0});
}

template <typename Stored, typename T>
void StoreRow(const T* row, T scale, const AttentionOperand& x, int64_t batch, int64_t head,
              int64_t token, int64_t head_dim) {
  Stored* to = static_cast<Stored*>(x.data) + batch * x.batch_stride + head * x.head_stride +
               token * x.token_stride;
#pragma omp simd
  for (int64_t d = 0; d < head_dim; ++d) to[d] = static_cast<Stored>(row[d] * scale);
}

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_ATTENTION_TILES_H_
