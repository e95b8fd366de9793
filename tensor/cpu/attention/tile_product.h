// SPDX-License-Identifier: Apache-2.0

// Products of small dense tiles in the first or second level cache, blocked in registers. Private
// to tensor/cpu.
//
//   TileProduct<float, kTransA>(a, lda, b, ldb, c, ldc, m, n, k, accumulate);
//
// computes c = op(a) b, or c += op(a) b if `accumulate`, for op(a) m×k, b k×n and c m×n. With
// elements of type Bf16Pair, k counts pairs.
#ifndef APOGEE_TENSOR_CPU_ATTENTION_TILE_PRODUCT_H_
#define APOGEE_TENSOR_CPU_ATTENTION_TILE_PRODUCT_H_

#include <cstdint>

#include "apogee/tensor/cpu/simd.h"

namespace apogee::cpu {

// m must be a multiple of this, n a multiple of kLanes<Sum<E>>.
inline constexpr int64_t kTileRowStep = 8;

namespace internal {

// Computes kRows rows and kVecs vectors of c, in registers over all of k.
template <typename E, bool kTransA, int kRows, int kVecs>
inline __attribute__((always_inline)) void RegisterProduct(const E* a, int64_t lda, const E* b,
                                                           int64_t ldb, Sum<E>* c, int64_t ldc,
                                                           int64_t k, bool accumulate) {
  using T = Sum<E>;
  constexpr int kWidth = kLanes<T>;
  Vec<T> sum[kRows][kVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      sum[i][v] = accumulate ? Load(c + i * ldc + v * kWidth) : Vec<T>{};
    }
  }
  for (int64_t p = 0; p < k; ++p) {
    Vec<E> b_row[kVecs];
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) b_row[v] = Load(b + p * ldb + v * kWidth);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vec<E> a_value = Splat(kTransA ? a[p * lda + i] : a[i * lda + p]);
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) {
        sum[i][v] = Packing<E>::MultiplyAdd(sum[i][v], a_value, b_row[v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) Store(c + i * ldc + v * kWidth, sum[i][v]);
  }
}

template <typename E, bool kTransA, int kVecs>
void TileColumns(const E* a, int64_t lda, const E* b, int64_t ldb, Sum<E>* c, int64_t ldc,
                 int64_t m, int64_t k, bool accumulate) {
  constexpr int kRows = kNumVecRegisters == 32 ? 8 : 4;
  for (int64_t i = 0; i < m; i += kRows) {
    RegisterProduct<E, kTransA, kRows, kVecs>(kTransA ? a + i : a + i * lda, lda, b, ldb,
                                              c + i * ldc, ldc, k, accumulate);
  }
}

}  // namespace internal

template <typename E, bool kTransA>
void TileProduct(const E* a, int64_t lda, const E* b, int64_t ldb, Sum<E>* c, int64_t ldc,
                 int64_t m, int64_t n, int64_t k, bool accumulate) {
  using T = Sum<E>;
  // Two columns of vectors: enough independent sums to hide the latency of a multiply-add, but few
  // enough that the compiler keeps the row of b in registers. It would load a wider row again for
  // every multiply-add.
  int64_t j = 0;
  for (; j + 2 * kLanes<T> <= n; j += 2 * kLanes<T>) {
    internal::TileColumns<E, kTransA, 2>(a, lda, b + j, ldb, c + j, ldc, m, k, accumulate);
  }
  if (j < n) internal::TileColumns<E, kTransA, 1>(a, lda, b + j, ldb, c + j, ldc, m, k, accumulate);
}

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_ATTENTION_TILE_PRODUCT_H_
