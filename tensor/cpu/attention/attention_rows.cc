// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/cpu/attention/attention_rows.h"

#include <cmath>
#include <limits>
#include <utility>

#include "apogee/core/parallel.h"
#include "apogee/tensor/cpu/attention/attention_tiles.h"

namespace apogee::cpu {
namespace {

constexpr int64_t kKeys = kGroup;  // in a block

// Scratch memory of one thread: the queries that share a head of keys, and what belongs to them.
template <typename T>
struct RowScratch {
  T *q, *sums;  // [rows, ld]
  T* scores;    // [rows, kv_rows], then weights
  T* totals;    // [rows], of the weights
  T* block;     // [kKeys, ld]

  // In elements.
  static int64_t Size(int64_t rows, int64_t kv_rows, int64_t ld) {
    return 2 * rows * ld + rows * kv_rows + rows + kKeys * ld;
  }
  RowScratch(T* memory, int64_t rows, int64_t kv_rows, int64_t ld) {
    const auto take = [&memory](int64_t size) { return std::exchange(memory, memory + size); };
    q = take(rows * ld);
    sums = take(rows * ld);
    scores = take(rows * kv_rows);
    totals = take(rows);
    block = take(kKeys * ld);
  }
};

// kKeys keys or values of a head as rows of T.
template <typename T>
struct Block {
  const T* rows;
  int64_t stride;
};

// Those from `token` on, of which `count` exist; the others are zeros. They stay where they lie if
// they need neither conversion nor padding.
template <typename Stored, typename T>
Block<T> BlockOf(const AttentionOperand& x, int64_t batch, int64_t head, int64_t token,
                 int64_t count, int64_t head_dim, int64_t ld, T* block) {
  if constexpr (std::is_same_v<Stored, T>) {
    if (count == kKeys && head_dim == ld) {
      return {Row<Stored>(x, batch, head, token), x.token_stride};
    }
  }
  LoadRows<Stored>(x, batch, head, token, count, head_dim, ld, block);
  return {block, ld};
}

// scores[i] = q . keys[i]
template <typename T>
void Dots(const T* q, const Block<T>& keys, int64_t ld, T* scores) {
  for (int64_t first = 0; first < kKeys; first += kLanes<T>) {
    Vec<T> sums[kLanes<T>] = {};
    const T* rows = keys.rows + first * keys.stride;
    for (int64_t d = 0; d < ld; d += kLanes<T>) {
      const Vec<T> q_d = Load(q + d);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes<T>; ++i) sums[i] += q_d * Load(rows + i * keys.stride + d);
    }
    Store(scores + first, SumsOf<T>(sums));
  }
}

// sums += sum_i weights[i] values[i]
template <typename T>
void AddWeighted(const T* weights, const Block<T>& values, int64_t ld, T* sums) {
  for (int64_t d = 0; d < ld; d += kLanes<T>) {
    Vec<T> sum = Load(sums + d);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kKeys; ++i) {
      sum += Splat(weights[i]) * Load(values.rows + i * values.stride + d);
    }
    Store(sums + d, sum);
  }
}

// Scales the scores of a query and masks them. They are then those of powers of 2.
template <typename Stored, typename T>
void FinishScores(const AttentionForwardArgs& args, int64_t batch, int64_t head, int64_t query,
                  int64_t begin, int64_t first, int64_t kv_rows, T* scores) {
  const T scale = static_cast<T>(args.scale), log2e = static_cast<T>(kLog2E);
  for (int64_t j = begin; j < kv_rows; j += kLanes<T>) {
    Store(scores + j, Load(scores + j) * scale);
  }
  if (args.soft_cap != 0) {
    const T cap = static_cast<T>(args.soft_cap);
#pragma omp simd
    for (int64_t j = begin; j < kv_rows; ++j) scores[j] = cap * FastTanh(scores[j] / cap);
  }
  const AttentionMask& mask = args.mask;
  if (mask.data != nullptr) {
    const int64_t at = batch * mask.strides[0] + head * mask.strides[1] + query * mask.strides[2];
    for (int64_t j = begin; j < args.kv_tokens; ++j) {
      const int64_t element = at + j * mask.strides[3];
      if (mask.dtype == DType::kU8) {
        const bool seen = static_cast<const uint8_t*>(mask.data)[element] != 0;
        if (!seen) scores[j] = -std::numeric_limits<T>::infinity();
      } else {
        scores[j] += static_cast<T>(static_cast<const Stored*>(mask.data)[element]);
      }
    }
  }
  for (int64_t j = begin; j < kv_rows; j += kLanes<T>) {
    Store(scores + j, Load(scores + j) * log2e);
  }
  const int64_t seen = args.causal ? query + args.kv_tokens - args.q_tokens + 1 : args.kv_tokens;
  const T unseen = -std::numeric_limits<T>::infinity();
  std::fill(scores + begin, scores + std::clamp(first, begin, args.kv_tokens), unseen);
  std::fill(scores + std::max(seen, begin), scores + kv_rows, unseen);
}

template <typename T>
struct Softmax {
  T max, total;  // max in base 2
};

// Turns scores into weights relative to their maximum.
template <typename T>
Softmax<T> Weigh(int64_t begin, int64_t kv_rows, T* scores) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  Vec<T> most = Splat(-kInfinity), total = {};
  for (int64_t j = begin; j < kv_rows; j += kLanes<T>) {
    const Vec<T> s = Load(scores + j);
    most = s > most ? s : most;
  }
  T max = most[0];
  for (int lane = 1; lane < kLanes<T>; ++lane) max = std::max(max, most[lane]);
  // A query that sees no key has a maximum of -inf; subtracting that would give NaN.
  const T base = max == -kInfinity ? T{0} : max;
  for (int64_t j = begin; j < kv_rows; j += kLanes<T>) {
    const Vec<T> weights = Exp2(Load(scores + j) - base);
    total += weights;
    Store(scores + j, weights);
  }
  T sum = 0;
  for (int lane = 0; lane < kLanes<T>; ++lane) sum += total[lane];
  return {max, sum};
}

// The queries of all heads that read key/value head kv_head.
template <typename Stored, typename T>
void AttendHead(const AttentionForwardArgs& args, int64_t batch, int64_t kv_head, int64_t ld,
                const RowScratch<T>& scratch) {
  const int64_t group = args.heads / args.kv_heads, rows = group * args.q_tokens;
  const int64_t kv_rows = RoundUpToGroup(args.kv_tokens);
  const FirstKeysOfTile first(args, batch, 0, args.q_tokens);
  const int64_t begin = std::clamp<int64_t>(first.least, 0, args.kv_tokens) / kKeys * kKeys;
  const auto head_of = [&](int64_t row) { return kv_head * group + row / args.q_tokens; };
  std::fill_n(scratch.sums, rows * ld, T{0});
  std::fill_n(scratch.q, rows * ld, T{0});
  for (int64_t r = 0; r < rows; ++r) {
    const Stored* q = Row<Stored>(args.q, batch, head_of(r), r % args.q_tokens);
    for (int64_t d = 0; d < args.head_dim; ++d) scratch.q[r * ld + d] = static_cast<T>(q[d]);
  }
  const auto for_blocks = [&](const AttentionOperand& x, const auto& fn) {
    for (int64_t key = begin; key < args.kv_tokens; key += kKeys) {
      const Block<T> block =
          BlockOf<Stored>(x, batch, kv_head, key, std::min(kKeys, args.kv_tokens - key),
                          args.head_dim, ld, scratch.block);
      for (int64_t r = 0; r < rows; ++r) fn(r, key, block);
    }
  };
  for_blocks(args.k, [&](int64_t r, int64_t key, const Block<T>& keys) {
    Dots(scratch.q + r * ld, keys, ld, scratch.scores + r * kv_rows + key);
  });
  T* const lse = static_cast<T*>(args.lse);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t head = head_of(r), query = r % args.q_tokens;
    T* const scores = scratch.scores + r * kv_rows;
    FinishScores<Stored>(args, batch, head, query, begin, first.at[query], kv_rows, scores);
    const Softmax<T> softmax = Weigh(begin, kv_rows, scores);
    scratch.totals[r] = softmax.total;
    lse[(batch * args.heads + head) * args.q_tokens + query] =
        (softmax.max + std::log2(softmax.total)) * static_cast<T>(kLn2);
  }
  for_blocks(args.v, [&](int64_t r, int64_t key, const Block<T>& values) {
    AddWeighted(scratch.scores + r * kv_rows + key, values, ld, scratch.sums + r * ld);
  });
  for (int64_t r = 0; r < rows; ++r) {
    const T total = scratch.totals[r];
    StoreResult<Stored>(args.wide, scratch.sums + r * ld, total > 0 ? 1 / total : total, args.out,
                        batch, head_of(r), r % args.q_tokens, args.head_dim);
  }
}

template <typename Stored>
void Attend(const DeviceContext& context, const AttentionForwardArgs& args) {
  using T = ComputeType<Stored>;
  const int64_t ld = PaddedHeadDim<T>(args.head_dim);
  const int64_t rows = args.heads / args.kv_heads * args.q_tokens;
  const int64_t kv_rows = RoundUpToGroup(args.kv_tokens), count = args.batch * args.kv_heads;
  const int64_t parts = std::min<int64_t>(count, context.num_threads());
  const int64_t size = RowScratch<T>::Size(rows, kv_rows, ld);
  const Workspace workspace(context, parts * size * static_cast<int64_t>(sizeof(T)));
  ParallelFor(context, parts, 1, [&](int64_t begin, int64_t end) {
    const RowScratch<T> scratch(workspace.data<T>() + begin * size, rows, kv_rows, ld);
    for (int64_t task = count * begin / parts; task < count * end / parts; ++task) {
      AttendHead<Stored>(args, task / args.kv_heads, task % args.kv_heads, ld, scratch);
    }
  });
}

}  // namespace

void AttendRows(const DeviceContext& context, const AttentionForwardArgs& args) {
  DispatchFloat(args.dtype, "attention_forward",
                [&]<typename Stored>() { Attend<Stored>(context, args); });
}

}  // namespace apogee::cpu
