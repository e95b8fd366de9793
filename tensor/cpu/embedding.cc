// SPDX-License-Identifier: Apache-2.0

// Embedding lookup and its gradient. Backward sorts the token positions by id (a counting sort).
// Each thread then owns a range of vocabulary rows and adds their tokens in order: no atomics, and
// the same bits for any number of threads.
#include <cstring>

#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"

namespace apogee::cpu {
namespace {

// Whether row `id - first` is one of the `vocab` rows of this part.
bool IsHeld(int64_t id, int64_t first, int64_t vocab) { return id >= first && id - first < vocab; }

// positions[offsets[v]] to positions[offsets[v + 1] - 1] are the positions of the tokens with id
// first + v, ascending. Padding has none.
void SortById(const EmbeddingBackwardArgs& args, int64_t* offsets, int64_t* positions) {
  const int64_t vocab = args.vocab;
  const auto for_held = [&](const auto& fn) {
    for (int64_t i = 0; i < args.n; ++i) {
      const int64_t id = args.ids[i];
      if (IsHeld(id, args.first, vocab) && id != args.padding_id) fn(i, id - args.first);
    }
  };
  std::fill(offsets, offsets + vocab + 1, int64_t{0});
  for_held([=](int64_t, int64_t v) { ++offsets[v + 1]; });
  for (int64_t v = 0; v < vocab; ++v) offsets[v + 1] += offsets[v];
  // Each offset is the cursor of its id; in the end it is the next id's start.
  for_held([=](int64_t i, int64_t v) { positions[offsets[v]++] = i; });
  std::move_backward(offsets, offsets + vocab, offsets + vocab + 1);
  offsets[0] = 0;
}

template <typename T, typename G>
void SumTokens(const T* dy, int64_t dim, const int64_t* positions, int64_t count, G* out) {
  using C = WiderCompute<T, G>;
  constexpr int64_t kTile = 512;
  C sums[kTile];
  for (int64_t begin = 0; begin < dim; begin += kTile) {
    const int64_t width = std::min(kTile, dim - begin);
    std::fill(sums, sums + width, C(0));
    for (int64_t p = 0; p < count; ++p) {
      const T* row = dy + positions[p] * dim + begin;
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) sums[i] += Cast<C>(row[i]);
    }
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) out[begin + i] = Cast<G>(sums[i]);
  }
}

template <typename T, typename G>
void Backward(const DeviceContext& context, const EmbeddingBackwardArgs& args) {
  const T* dy = static_cast<const T*>(args.dy);
  G* dweight = static_cast<G*>(args.dweight);
  const int64_t dim = args.dim;
  const int64_t vocab = args.vocab;
  const Workspace workspace(context, (vocab + 1 + args.n) * static_cast<int64_t>(sizeof(int64_t)));
  int64_t* offsets = workspace.data<int64_t>();
  int64_t* positions = offsets + vocab + 1;
  SortById(args, offsets, positions);
  // Threads get equal cost, not equal numbers of rows: frequent ids are often neighbours. A row
  // costs one unit to write and one per token, so row v starts at unit offsets[v] + v.
  ForRows(context, vocab + args.n, dim, [=](int64_t begin, int64_t end) {
    int64_t low = 0;
    int64_t high = vocab;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (offsets[middle] + middle < begin) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    for (int64_t v = low; v < vocab && offsets[v] + v < end; ++v) {
      SumTokens(dy, dim, positions + offsets[v], offsets[v + 1] - offsets[v], dweight + v * dim);
    }
  });
}

}  // namespace

void embedding_forward(const DeviceContext& context, const EmbeddingForwardArgs& args) {
  const char* weight = static_cast<const char*>(args.weight);
  char* y = static_cast<char*>(args.y);
  const int64_t row_bytes = args.dim * DTypeSize(args.dtype);
  ForRows(context, args.n, args.dim, [=, &args](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (IsHeld(args.ids[i], args.first, args.vocab)) {
        std::memcpy(y + i * row_bytes, weight + (args.ids[i] - args.first) * row_bytes,
                    static_cast<size_t>(row_bytes));
      } else {
        std::memset(y + i * row_bytes, 0, static_cast<size_t>(row_bytes));
      }
    }
  });
}

void embedding_backward(const DeviceContext& context, const EmbeddingBackwardArgs& args) {
  DispatchFloat(args.dtype, "embedding_backward", [&]<typename T>() {
    DispatchFloat(args.grad_dtype, "embedding_backward",
                  [&]<typename G>() { Backward<T, G>(context, args); });
  });
}

}  // namespace apogee::cpu
