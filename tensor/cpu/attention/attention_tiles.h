// SPDX-License-Identifier: Apache-2.0

// Tiles and masks that attention's forward and backward share. Private to tensor/cpu.
//
// Scores are kept transposed: a tile has keys in rows and queries in columns, so that the softmax
// over the keys of a query runs lane by lane. Queries come in groups of kGroup. The causal mask
// leaves out the part of a product that no query of a group sees; elements are masked one by one
// only for keys that the last query of a group sees and the first does not.
#ifndef APOGEE_TENSOR_CPU_ATTENTION_ATTENTION_TILES_H_
#define APOGEE_TENSOR_CPU_ATTENTION_ATTENTION_TILES_H_

#include <algorithm>
#include <limits>

#include "apogee/core/dtype.h"
#include "apogee/tensor/cpu/attention/tile_product.h"
#include "apogee/tensor/cpu/vec_math.h"
#include "apogee/tensor/kernels/attention_args.h"

namespace apogee::cpu {

inline constexpr int64_t kGroup = 16;
inline constexpr int64_t kQueryTile = 64;
inline constexpr int64_t kKeyTile = 64;
inline constexpr int64_t kQueryGroups = kQueryTile / kGroup;

inline int64_t RoundUpToGroup(int64_t n) { return (n + kGroup - 1) / kGroup * kGroup; }

inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr double kLn2 = 0.6931471805599453;

// The keys in [key0, key0 + num_keys) that each group of queries from query0 on sees.
struct TileMask {
  int64_t groups;               // of kGroup queries; the last may be padded
  int64_t keys;                 // in the tile
  int64_t first[kQueryGroups];  // keys that the group's first query sees; may be < 0 or > keys
  int64_t limit[kQueryGroups];  // keys that its last query sees, in [0, keys]; ascending

  template <typename Args>
  TileMask(const Args& args, int64_t query0, int64_t num_queries, int64_t key0, int64_t num_keys)
      : groups(RoundUpToGroup(num_queries) / kGroup), keys(num_keys) {
    for (int64_t g = 0; g < groups; ++g) {
      first[g] =
          args.causal ? query0 + g * kGroup + args.kv_tokens - args.q_tokens - key0 + 1 : num_keys;
      limit[g] = args.causal ? std::clamp<int64_t>(first[g] + kGroup - 1, 0, num_keys) : num_keys;
    }
  }
  bool empty() const { return limit[groups - 1] == 0; }
  // The first group that sees `key`; `groups` if none does.
  int64_t FirstGroup(int64_t key) const {
    int64_t g = 0;
    while (g < groups && limit[g] <= key) ++g;
    return g;
  }
  // Calls fn(key, num_keys, group) for runs of keys. The groups [group, groups) see the keys
  // [key, key + num_keys), or a part of them.
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

// A mask of the queries lane0, lane0 + 1, ... of a group: which of them see `key`. The group's
// first query sees `first` keys.
template <typename T>
inline auto VisibleLanes(int64_t key, int64_t first, int64_t lane0) {
  return Iota<T>() > static_cast<T>(key - first - lane0);
}

// The first key that each of a tile of queries sees, by the window and by the query's document.
struct FirstKeysOfTile {
  int64_t at[kQueryTile];
  int64_t least, most;

  template <typename Args>
  FirstKeysOfTile(const Args& args, int64_t batch, int64_t query0, int64_t queries) {
    const int64_t* documents = args.first_keys.data;
    if (documents != nullptr) documents += batch * args.first_keys.batch_stride;
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t query = query0 + i;
      at[i] = args.window == 0 ? 0 : query + args.kv_tokens - args.q_tokens - args.window + 1;
      if (documents != nullptr) at[i] = std::max(at[i], documents[query]);
    }
    least = *std::min_element(at, at + queries);
    most = *std::max_element(at, at + queries);
  }
  // The first key of the first tile of keys that a query sees. May lie behind the last key.
  int64_t key_tile() const { return std::max<int64_t>(least, 0) / kKeyTile * kKeyTile; }
};

// Caps the scores of a tile, which are not scaled yet: with s = scale * score, a score becomes
// soft_cap * tanh(s / soft_cap) / scale. `slopes`, if it isn't null, gets the derivatives.
template <typename T, typename Args>
void CapScores(const Args& args, const TileMask& mask, T* scores, T* slopes) {
  const T to_tanh = static_cast<T>(args.scale / args.soft_cap);
  const T to_score = static_cast<T>(args.soft_cap / args.scale);
  mask.ForEachKeyRun([&](int64_t key, int64_t num_keys, int64_t group) {
    const int64_t queries = (mask.groups - group) * kGroup;
    for (int64_t j = key; j < key + num_keys; ++j) {
      T* row = scores + j * kQueryTile + group * kGroup;
#pragma omp simd
      for (int64_t i = 0; i < queries; ++i) row[i] = FastTanh(row[i] * to_tanh);
      if (slopes != nullptr) {
        T* slope = slopes + j * kQueryTile + group * kGroup;
#pragma omp simd
        for (int64_t i = 0; i < queries; ++i) slope[i] = T(1) - row[i] * row[i];
      }
#pragma omp simd
      for (int64_t i = 0; i < queries; ++i) row[i] *= to_score;
    }
  });
}

// Applies the first keys and the mask of `args` to the scores of a tile, which are not scaled yet.
// Stored is the dtype of q.
template <typename Stored, typename T, typename Args>
void MaskScores(const Args& args, const FirstKeysOfTile& first, int64_t batch, int64_t head,
                int64_t query0, int64_t queries, int64_t key0, int64_t keys, T* scores) {
  constexpr T kUnseen = -std::numeric_limits<T>::infinity();
  for (int64_t j = 0; j < std::min(keys, first.most - key0); ++j) {
    T* row = scores + j * kQueryTile;
    for (int64_t i = 0; i < queries; ++i) row[i] = first.at[i] > key0 + j ? kUnseen : row[i];
  }
  const AttentionMask& mask = args.mask;
  if (mask.data == nullptr) return;
  const T to_scores = static_cast<T>(1 / args.scale);
  for (int64_t i = 0; i < queries; ++i) {
    T* column = scores + i;
    const int64_t at = batch * mask.strides[0] + head * mask.strides[1] +
                       (query0 + i) * mask.strides[2] + key0 * mask.strides[3];
    if (mask.dtype == DType::kU8) {
      const uint8_t* row = static_cast<const uint8_t*>(mask.data) + at;
      for (int64_t j = 0; j < keys; ++j) {
        if (row[j * mask.strides[3]] == 0) column[j * kQueryTile] = kUnseen;
      }
    } else {
      const Stored* row = static_cast<const Stored*>(mask.data) + at;
      for (int64_t j = 0; j < keys; ++j) {
        column[j * kQueryTile] += static_cast<T>(row[j * mask.strides[3]]) * to_scores;
      }
    }
  }
}

// The element type of tiles of an operand that is stored as Stored.
template <typename Stored>
using TileElement = std::conditional_t<std::is_same_v<Stored, BFloat16> && kHasBf16Dot, Bf16Pair,
                                       ComputeType<Stored>>;

// A tile x[token, d] of elements E has one of three forms. With pairs (kPack = 2) they also differ
// in the neighbours that a pair joins:
//   rows         [token, d / kPack]    for products over d
//   interleaved  [token / kPack, d]    for products over tokens
//   transposed   [d / kPack, token]    for products over d
// `ld` is PaddedHeadDim. Scores [key, query], weights and their gradients have rows of kQueryTile
// elements in every form.

// scores[key, query] = sum_d x[key, d] y[query, d], where visible. x is in rows, y transposed.
template <typename E>
void ScoreProduct(const TileMask& mask, const E* x, const E* y, int64_t ld, Sum<E>* scores) {
  mask.ForEachKeyRun([&](int64_t key, int64_t num_keys, int64_t group) {
    const int64_t query = group * kGroup;
    TileProduct<E, false>(x + key * ld / kPack<E>, ld / kPack<E>, y + query, kQueryTile,
                          scores + key * kQueryTile + query, kQueryTile, num_keys,
                          mask.groups * kGroup - query, ld / kPack<E>, false);
  });
}

// sums[key, d] += sum_query scores[key, query] y[query, d]. Masked scores are 0. Scores are in
// rows, y is interleaved.
template <typename E>
void AddKeyProduct(const TileMask& mask, const E* scores, const E* y, int64_t ld, Sum<E>* sums) {
  mask.ForEachKeyRun([&](int64_t key, int64_t num_keys, int64_t group) {
    const int64_t pair = group * kGroup / kPack<E>;
    TileProduct<E, false>(scores + key * kQueryTile + pair, kQueryTile, y + pair * ld, ld,
                          sums + key * ld, ld, num_keys, ld, mask.groups * kGroup / kPack<E> - pair,
                          true);
  });
}

// sums[query, d] += sum_key scores[key, query] x[key, d]. Both are interleaved.
template <typename E>
void AddQueryProduct(const TileMask& mask, const E* scores, const E* x, int64_t ld, Sum<E>* sums) {
  for (int64_t g = 0, next = 0; g < mask.groups; g = next) {
    for (next = g + 1; next < mask.groups && mask.limit[next] == mask.limit[g];) ++next;
    TileProduct<E, true>(scores + g * kGroup, kQueryTile, x, ld, sums + g * kGroup * ld, ld,
                         (next - g) * kGroup, ld, (mask.limit[g] + kPack<E> - 1) / kPack<E>, true);
  }
}

template <typename Stored>
Stored* Row(const AttentionOperand& x, int64_t batch, int64_t head, int64_t token) {
  return static_cast<Stored*>(x.data) + batch * x.batch_stride + head * x.head_stride +
         token * x.token_stride;
}

// Rows of one head, padded with zeros to RoundUpToGroup(rows) × ld.
template <typename Stored, typename E>
void LoadRows(const AttentionOperand& x, int64_t batch, int64_t head, int64_t token, int64_t rows,
              int64_t head_dim, int64_t ld, E* tile) {
  // Pairs are the stored bf16 themselves.
  using To = std::conditional_t<std::is_same_v<E, Bf16Pair>, Stored, E>;
  To* to = reinterpret_cast<To*>(tile);
  for (int64_t i = 0; i < rows; ++i, to += ld) {
    const Stored* row = Row<Stored>(x, batch, head, token + i);
    if constexpr (std::is_same_v<Stored, To>) {
      std::memcpy(to, row, static_cast<size_t>(head_dim) * sizeof(To));
    } else {
#pragma omp simd
      for (int64_t d = 0; d < head_dim; ++d) to[d] = static_cast<To>(row[d]);
    }
    std::memset(to + head_dim, 0, static_cast<size_t>(ld - head_dim) * sizeof(To));
  }
  std::memset(to, 0, static_cast<size_t>((RoundUpToGroup(rows) - rows) * ld) * sizeof(To));
}

// head_dim padded so that TransposeTile and TileProduct have no remainders to handle.
template <typename E>
int64_t PaddedHeadDim(int64_t head_dim) {
  return RoundUpToGroup((head_dim + kPack<E> - 1) / kPack<E>) * kPack<E>;
}

// Writes the transposed form of a tile of queries in rows.
template <typename E>
void TransposeTile(const E* tile, int64_t rows, int64_t ld, E* transposed) {
  Transpose(tile, ld / kPack<E>, rows, ld / kPack<E>, transposed, kQueryTile);
}

// Writes the interleaved form of a tile in rows. `rows` is even.
inline void Interleave(const Bf16Pair* tile, int64_t rows, int64_t ld, Bf16Pair* interleaved) {
  const uint16_t* row = reinterpret_cast<const uint16_t*>(tile);
  for (int64_t i = 0; i < rows; i += 2, row += 2 * ld, interleaved += ld) {
#pragma omp simd
    for (int64_t d = 0; d < ld; ++d) {
      interleaved[d] = row[d] | static_cast<uint32_t>(row[ld + d]) << 16;
    }
  }
}

template <typename Stored, typename T>
void StoreRow(const T* row, T scale, const AttentionOperand& x, int64_t batch, int64_t head,
              int64_t token, int64_t head_dim) {
  Stored* to = Row<Stored>(x, batch, head, token);
  for (int64_t d = 0; d < head_dim; ++d) to[d] = static_cast<Stored>(row[d] * scale);
}

// As StoreRow, but stores elements of T if `wide`.
template <typename Stored, typename T>
void StoreResult(bool wide, const T* row, T scale, const AttentionOperand& x, int64_t batch,
                 int64_t head, int64_t token, int64_t head_dim) {
  if (wide) return StoreRow<T>(row, scale, x, batch, head, token, head_dim);
  StoreRow<Stored>(row, scale, x, batch, head, token, head_dim);
}

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_ATTENTION_ATTENTION_TILES_H_
