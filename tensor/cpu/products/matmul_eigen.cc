// SPDX-License-Identifier: Apache-2.0

// Products by Eigen. Every dtype is computed in its compute type; 16-bit operands are converted
// tile by tile.
#define EIGEN_DONT_PARALLELIZE  // ParallelFor splits the work over the rank's threads

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's AVX-512 intrinsics start from an undefined register (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <Eigen/Core>
#include <algorithm>

#include "apogee/core/parallel.h"
#include "apogee/tensor/cpu/products/matmul_paths.h"

namespace apogee::cpu {
namespace {

// A stored matrix. trans: the product's operand is its transpose.
template <typename T>
struct Operand {
  const T* data;
  int64_t ld;
  bool trans;

  const T* At(int64_t row, int64_t col) const {
    return trans ? data + col * ld + row : data + row * ld + col;
  }
};

template <typename T>
using MatrixMap = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0,
                             Eigen::OuterStride<>>;
template <typename T>
using ConstMatrixMap =
    Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0,
               Eigen::OuterStride<>>;

// c += alpha * a b
template <typename T>
void MultiplyAdd(const Operand<T>& a, const Operand<T>& b, T alpha, T* c, int64_t ldc, int64_t m,
                 int64_t n, int64_t k) {
  MatrixMap<T> c_map(c, m, n, Eigen::OuterStride<>(ldc));
  const ConstMatrixMap<T> a_map(a.data, a.trans ? k : m, a.trans ? m : k,
                                Eigen::OuterStride<>(a.ld));
  const ConstMatrixMap<T> b_map(b.data, b.trans ? n : k, b.trans ? k : n,
                                Eigen::OuterStride<>(b.ld));
  if (a.trans && b.trans) {
    c_map.noalias() += alpha * (a_map.transpose() * b_map.transpose());
  } else if (a.trans) {
    c_map.noalias() += alpha * (a_map.transpose() * b_map);
  } else if (b.trans) {
    c_map.noalias() += alpha * (a_map * b_map.transpose());
  } else {
    c_map.noalias() += alpha * (a_map * b_map);
  }
}

// c = beta * c + bias, before a product is added.
template <typename T>
void Initialise(T* c, int64_t ldc, int64_t m, int64_t n, T beta, const T* bias) {
  for (int64_t i = 0; i < m; ++i) {
    T* row = c + i * ldc;
    for (int64_t j = 0; j < n; ++j) {
      row[j] = (beta == 0 ? T{0} : beta * row[j]) + (bias != nullptr ? bias[j] : T{0});
    }
  }
}

// For inputs and an output that have the compute type. Each thread computes one product, for a part
// of the longer side.
template <typename T>
void MatMulDirect(const DeviceContext& context, const MatMulArgs& args, const T* bias) {
  const T alpha = static_cast<T>(args.alpha), beta = static_cast<T>(args.beta);
  const bool split_rows = args.m >= args.n;
  constexpr int64_t kMinPart = 16;  // rows or columns
  const int64_t side = split_rows ? args.m : args.n;
  const int64_t parts =
      args.batch > 1
          ? 1
          : std::max<int64_t>(1, std::min<int64_t>(context.num_threads(), side / kMinPart));
  ParallelFor(context, args.batch * parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t batch = task / parts, part = task % parts;
      const int64_t lo = side * part / parts, hi = side * (part + 1) / parts;
      const int64_t i0 = split_rows ? lo : 0, m = split_rows ? hi - lo : args.m;
      const int64_t j0 = split_rows ? 0 : lo, n = split_rows ? args.n : hi - lo;
      Operand<T> a{static_cast<const T*>(args.a) + batch * args.a_batch, args.lda, args.a_trans};
      Operand<T> b{static_cast<const T*>(args.b) + batch * args.b_batch, args.ldb, args.b_trans};
      a.data = a.At(i0, 0);
      b.data = b.At(0, j0);
      T* c = static_cast<T*>(args.c) + batch * args.c_batch + i0 * args.ldc + j0;
      Initialise(c, args.ldc, m, n, beta, bias != nullptr ? bias + j0 : nullptr);
      if (args.k > 0) MultiplyAdd(a, b, alpha, c, args.ldc, m, n, args.k);
    }
  });
}

constexpr int64_t kTileM = 128, kTileN = 256, kTileK = 256;

// Copies the rows × cols block at (row, col) of the product's operand into a dense tile.
template <typename T, typename C>
Operand<C> LoadTile(const Operand<T>& x, int64_t row, int64_t col, int64_t rows, int64_t cols,
                    C* tile) {
  const T* from = x.At(row, col);
  const int64_t stored_rows = x.trans ? cols : rows, stored_cols = x.trans ? rows : cols;
  for (int64_t i = 0; i < stored_rows; ++i) {
    for (int64_t j = 0; j < stored_cols; ++j) {
      tile[i * stored_cols + j] = static_cast<ComputeType<T>>(from[i * x.ld + j]);
    }
  }
  return {tile, stored_cols, x.trans};
}

template <typename T, typename C>
void StoreTile(const C* tile, int64_t m, int64_t n, C alpha, C beta, const C* bias, T* c,
               int64_t ldc) {
  for (int64_t i = 0; i < m; ++i) {
    T* row = c + i * ldc;
    for (int64_t j = 0; j < n; ++j) {
      C value = alpha * tile[i * n + j];
      if (beta != 0) value += beta * static_cast<ComputeType<T>>(row[j]);
      if (bias != nullptr) value += bias[j];
      row[j] = static_cast<T>(static_cast<ComputeType<T>>(value));
    }
  }
}

// Tiles of c, each summed over k in the compute type and rounded once.
template <typename T, typename TC>
void MatMulTiled(const DeviceContext& context, const MatMulArgs& args, const ComputeType<T>* bias) {
  using C = ComputeType<T>;
  const int64_t tiles_m = (args.m + kTileM - 1) / kTileM;
  const int64_t tiles_n = (args.n + kTileN - 1) / kTileN;
  constexpr int64_t kPerThread = kTileM * kTileN + kTileM * kTileK + kTileK * kTileN;
  const int64_t count = args.batch * tiles_m * tiles_n;
  const int64_t parts = std::min<int64_t>(count, context.num_threads());
  const Workspace workspace(context, parts * kPerThread * static_cast<int64_t>(sizeof(C)));
  ParallelFor(context, parts, 1, [&](int64_t part_begin, int64_t part_end) {
    C* sum = workspace.data<C>() + part_begin * kPerThread;
    C* a_tile = sum + kTileM * kTileN;
    C* b_tile = a_tile + kTileM * kTileK;
    for (int64_t task = count * part_begin / parts; task < count * part_end / parts; ++task) {
      const int64_t batch = task / (tiles_m * tiles_n);
      const int64_t i0 = task / tiles_n % tiles_m * kTileM, j0 = task % tiles_n * kTileN;
      const int64_t m = std::min(kTileM, args.m - i0), n = std::min(kTileN, args.n - j0);
      const Operand<T> a{static_cast<const T*>(args.a) + batch * args.a_batch, args.lda,
                         args.a_trans};
      const Operand<T> b{static_cast<const T*>(args.b) + batch * args.b_batch, args.ldb,
                         args.b_trans};
      std::fill_n(sum, m * n, C{0});
      for (int64_t k0 = 0; k0 < args.k; k0 += kTileK) {
        const int64_t k = std::min(kTileK, args.k - k0);
        MultiplyAdd(LoadTile(a, i0, k0, m, k, a_tile), LoadTile(b, k0, j0, k, n, b_tile), C{1}, sum,
                    n, m, n, k);
      }
      StoreTile(sum, m, n, static_cast<C>(args.alpha), static_cast<C>(args.beta),
                bias != nullptr ? bias + j0 : nullptr,
                static_cast<TC*>(args.c) + batch * args.c_batch + i0 * args.ldc + j0, args.ldc);
    }
  });
}

}  // namespace

void MatMulEigen(const DeviceContext& context, const MatMulArgs& args) {
  DispatchFloat(args.dtype, "matmul", [&]<typename T>() {
    using C = ComputeType<T>;
    const Workspace workspace(context, args.bias == nullptr ? 0 : args.n * int64_t{sizeof(C)});
    C* bias = nullptr;
    if (args.bias != nullptr) {
      bias = workspace.data<C>();
      DispatchFloat(args.bias_dtype, "matmul", [&]<typename TBias>() {
        LoadTile(Operand<TBias>{static_cast<const TBias*>(args.bias), args.n, false}, 0, 0, 1,
                 args.n, bias);
      });
    }
    DispatchFloat(args.c_dtype, "matmul", [&]<typename TC>() {
      if constexpr (std::is_same_v<T, C> && std::is_same_v<T, TC>) {
        MatMulDirect<T>(context, args, bias);
      } else {
        MatMulTiled<T, TC>(context, args, bias);
      }
    });
  });
}

}  // namespace apogee::cpu
