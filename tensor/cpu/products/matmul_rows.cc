// SPDX-License-Identifier: Apache-2.0

// Products with few rows, as of the tokens that generation adds: they take the time in which b is
// read from memory. The general paths would first copy b into a layout of their own.
#include <algorithm>
#include <iterator>
#include <utility>

#include "apogee/core/parallel.h"
#include "apogee/tensor/cpu/products/matmul_paths.h"
#include "apogee/tensor/cpu/simd.h"

namespace apogee::cpu {
namespace {

constexpr int64_t kMaxRows = 8;
// Of b. Smaller ones stay in the cache, where the general paths are as fast.
constexpr int64_t kMinElements = int64_t{1} << 16;
constexpr int64_t kStep = 16;  // columns of c are divided at multiples

// kLanes<ComputeType<Stored>> elements, converted.
template <typename Stored>
inline __attribute__((always_inline)) Vec<ComputeType<Stored>> LoadWide(const Stored* p) {
  if constexpr (std::is_same_v<Stored, BFloat16>) {
    typedef uint16_t Halves __attribute__((vector_size(kVecBytes / 2)));
    typedef uint32_t Words __attribute__((vector_size(kVecBytes)));
    Halves halves;
    std::memcpy(&halves, p, sizeof(halves));
    return std::bit_cast<Vec<float>>(__builtin_convertvector(halves, Words) << 16);
  } else {
    return Load(p);
  }
}

// sums[i, j] = a[i] . b[j] for kRows rows of a and kCols rows of b.
template <typename Stored, int kRows, int kCols>
void DotRows(const ComputeType<Stored>* a, const Stored* b, int64_t ldb, int64_t k,
             ComputeType<Stored>* sums, int64_t ld) {
  using T = ComputeType<Stored>;
  constexpr int kWidth = kLanes<T>, kSums = kRows * kCols;
  // Filled up with zeros to a multiple of kWidth.
  Vec<T> sum[(kSums + kWidth - 1) / kWidth * kWidth] = {};
  int64_t p = 0;
  for (; p + kWidth <= k; p += kWidth) {
    Vec<T> b_p[kCols];
#pragma GCC unroll 8
    for (int j = 0; j < kCols; ++j) {
      b_p[j] = LoadWide(b + j * ldb + p);
      __builtin_prefetch(b + (kCols + j) * ldb + p);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Vec<T> a_p = Load(a + i * k + p);
#pragma GCC unroll 8
      for (int j = 0; j < kCols; ++j) sum[i * kCols + j] += a_p * b_p[j];
    }
  }
  T totals[std::size(sum)];
  for (size_t n = 0; n < std::size(sum); n += kWidth) Store(totals + n, SumsOf<T>(sum + n));
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kCols; ++j) {
      T total = totals[i * kCols + j];
      for (int64_t q = p; q < k; ++q) total += a[i * k + q] * static_cast<T>(b[j * ldb + q]);
      sums[i * ld + j] = total;
    }
  }
}

// sums[i, j] += sum_p a[i, p] b[p, j] for kDeep rows of b.
template <typename Stored, int kRows, int kDeep>
void AddRows(const ComputeType<Stored>* a, int64_t lda, const Stored* b, int64_t ldb, int64_t cols,
             ComputeType<Stored>* sums, int64_t ld) {
  using T = ComputeType<Stored>;
  constexpr int kWidth = kLanes<T>;
  int64_t j = 0;
  for (; j + kWidth <= cols; j += kWidth) {
    Vec<T> b_j[kDeep];
#pragma GCC unroll 8
    for (int p = 0; p < kDeep; ++p) {
      b_j[p] = LoadWide(b + p * ldb + j);
      // The next rows. With one row of a the processor is fast enough without.
      if (kRows > 1) __builtin_prefetch(b + (kDeep + p) * ldb + j);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      Vec<T> sum = Load(sums + i * ld + j);
#pragma GCC unroll 8
      for (int p = 0; p < kDeep; ++p) sum += Splat(a[i * lda + p]) * b_j[p];
      Store(sums + i * ld + j, sum);
    }
  }
  for (; j < cols; ++j) {
    for (int i = 0; i < kRows; ++i) {
      for (int p = 0; p < kDeep; ++p) {
        sums[i * ld + j] += a[i * lda + p] * static_cast<T>(b[p * ldb + j]);
      }
    }
  }
}

// The products of columns [begin, begin + cols) of c: sums [kRows, ld].
template <typename Stored, int kRows>
void Columns(const MatMulArgs& args, const ComputeType<Stored>* a, int64_t begin, int64_t cols,
             ComputeType<Stored>* sums, int64_t ld) {
  using T = ComputeType<Stored>;
  const Stored* const b = static_cast<const Stored*>(args.b);
  const int64_t k = args.k;
  if (args.b_trans) {
    // As many sums as there are registers for.
    constexpr int kCols = std::clamp(kNumVecRegisters * 3 / 4 / kRows, 1, 8);
    int64_t j = 0;
    for (; j + kCols <= cols; j += kCols) {
      DotRows<Stored, kRows, kCols>(a, b + (begin + j) * args.ldb, args.ldb, k, sums + j, ld);
    }
    for (; j < cols; ++j) {
      DotRows<Stored, kRows, 1>(a, b + (begin + j) * args.ldb, args.ldb, k, sums + j, ld);
    }
    return;
  }
  for (int i = 0; i < kRows; ++i) std::fill_n(sums + i * ld, cols, T{0});
  constexpr int kDeep = 8;
  int64_t p = 0;
  for (; p + kDeep <= k; p += kDeep) {
    AddRows<Stored, kRows, kDeep>(a + p, k, b + p * args.ldb + begin, args.ldb, cols, sums, ld);
  }
  for (; p < k; ++p) {
    AddRows<Stored, kRows, 1>(a + p, k, b + p * args.ldb + begin, args.ldb, cols, sums, ld);
  }
}

template <typename Stored, typename TC, int kRows>
void Multiply(const DeviceContext& context, const MatMulArgs& args) {
  using T = ComputeType<Stored>;
  // So many sums stay in the first level cache.
  constexpr int64_t kMaxCols = 4096 / kRows / kStep * kStep;
  const int64_t threads = context.num_threads(), bias_size = args.bias == nullptr ? 0 : args.n;
  const Workspace workspace(context, (kRows * args.k + bias_size + threads * kRows * kMaxCols) *
                                         static_cast<int64_t>(sizeof(T)));
  T* const a = workspace.data<T>();
  T* const bias = a + kRows * args.k;
  for (int i = 0; i < kRows; ++i) {
    const Stored* row = static_cast<const Stored*>(args.a) + i * args.lda;
    for (int64_t p = 0; p < args.k; ++p) a[i * args.k + p] = static_cast<T>(row[p]);
  }
  if (bias_size > 0) {
    DispatchFloat(args.bias_dtype, "matmul", [&]<typename TBias>() {
      const TBias* from = static_cast<const TBias*>(args.bias);
      for (int64_t j = 0; j < args.n; ++j)
        bias[j] = static_cast<T>(static_cast<ComputeType<TBias>>(from[j]));
    });
  }
  const T alpha = static_cast<T>(args.alpha), beta = static_cast<T>(args.beta);
  const int64_t steps = (args.n + kStep - 1) / kStep;
  const int64_t parts = std::min(threads, steps);
  ParallelFor(context, parts, 1, [&](int64_t part, int64_t) {
    T* const sums = bias + bias_size + part * kRows * kMaxCols;
    const int64_t end = std::min(args.n, steps * (part + 1) / parts * kStep);
    for (int64_t j0 = steps * part / parts * kStep; j0 < end; j0 += kMaxCols) {
      const int64_t cols = std::min(kMaxCols, end - j0);
      Columns<Stored, kRows>(args, a, j0, cols, sums, kMaxCols);
      for (int i = 0; i < kRows; ++i) {
        TC* const c = static_cast<TC*>(args.c) + i * args.ldc + j0;
        for (int64_t j = 0; j < cols; ++j) {
          T value = alpha * sums[i * kMaxCols + j];
          if (beta != 0) value += beta * static_cast<T>(c[j]);
          if (bias_size > 0) value += bias[j0 + j];
          c[j] = static_cast<TC>(value);
        }
      }
    }
  });
}

template <typename Stored, typename TC>
void Multiply(const DeviceContext& context, const MatMulArgs& args) {
  const auto with_rows = [&]<int... kRow>(std::integer_sequence<int, kRow...>) {
    ((args.m == kRow + 1 ? Multiply<Stored, TC, kRow + 1>(context, args) : void()), ...);
  };
  with_rows(std::make_integer_sequence<int, kMaxRows>());
}

}  // namespace

bool TryMatMulRows(const DeviceContext& context, const MatMulArgs& args) {
  const bool few = args.batch == 1 && args.m <= kMaxRows && !args.a_trans && args.n >= kStep;
  if (!few || args.n * args.k < kMinElements) return false;
  const auto run = [&]<typename Stored>() {
    if (args.c_dtype == args.dtype) return Multiply<Stored, Stored>(context, args), true;
    if (args.c_dtype == DType::kF32) return Multiply<Stored, float>(context, args), true;
    return false;
  };
  if (args.dtype == DType::kF32) return run.operator()<float>();
  if (args.dtype == DType::kBF16) return run.operator()<BFloat16>();
  return args.dtype == DType::kF64 && run.operator()<double>();
}

}  // namespace apogee::cpu
