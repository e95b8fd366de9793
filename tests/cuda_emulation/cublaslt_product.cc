// SPDX-License-Identifier: Apache-2.0

#include "cublaslt_product.h"

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's AVX-512 intrinsics start from an undefined register (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <Eigen/Core>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

namespace cuda_emulation {
namespace {

double ReadAs(const void* data, cudaDataType type, int64_t i) {
  switch (type) {
    case CUDA_R_32F:
      return static_cast<const float*>(data)[i];
    case CUDA_R_16BF:
      return std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(data)[i]} << 16);
    case CUDA_R_16F:
      return static_cast<double>(static_cast<float>(static_cast<const _Float16*>(data)[i]));
    default:
      return static_cast<const double*>(data)[i];
  }
}

void WriteAs(void* data, cudaDataType type, int64_t i, double value) {
  switch (type) {
    case CUDA_R_32F:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      return;
    case CUDA_R_16BF: {
      const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
      const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
      const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
      static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(nan ? bits >> 16 | 0x40u : rounded);
      return;
    }
    case CUDA_R_16F:
      static_cast<_Float16*>(data)[i] = static_cast<_Float16>(static_cast<float>(value));
      return;
    default:
      static_cast<double*>(data)[i] = value;
  }
}

// As the GELU of the real one seems to be rounded: bf16 toward zero.
void WriteGelu(void* data, cudaDataType type, int64_t i, float value) {
  if (type != CUDA_R_16BF) return WriteAs(data, type, i, static_cast<double>(value));
  static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

// Rounds to 10 bits of mantissa.
float ToTf32(float x) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(x) + 0x1000u) & ~uint32_t{0x1fff});
}

int64_t Index(const Layout& layout, int64_t z, int64_t row, int64_t col) {
  return z * layout.stride +
         (layout.order == CUBLASLT_ORDER_COL ? col * layout.ld + row : row * layout.ld + col);
}

template <typename C>
using Matrix = Eigen::Matrix<C, Eigen::Dynamic, Eigen::Dynamic>;

// op(x) for matrix z of the batch.
template <typename C>
Matrix<C> Operand(const void* data, const Layout& layout, int32_t trans, bool tf32, int64_t z) {
  Matrix<C> x(layout.rows, layout.cols);
  for (int64_t col = 0; col < x.cols(); ++col) {
    for (int64_t row = 0; row < x.rows(); ++row) {
      const double value = ReadAs(data, layout.type, Index(layout, z, row, col));
      x(row, col) = static_cast<C>(tf32 ? ToTf32(static_cast<float>(value)) : value);
    }
  }
  if (trans == CUBLAS_OP_T) x.transposeInPlace();
  return x;
}

template <typename C>
C GeluTanh(C x) {
  const C u = C(std::numbers::sqrt2 * std::numbers::inv_sqrtpi) * (x + C(0.044715) * x * x * x);
  return C(0.5) * x * (C(1) + std::tanh(u));
}

}  // namespace

template <typename C>
void Work<C>::operator()() const {
  const Layout &lc = layouts[2], &ld = layouts[3];
  const bool tf32 = product.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  if (workspace != nullptr) std::memset(workspace, 0x5a, workspace_bytes);
  for (int64_t z = 0; z < ld.batch; ++z) {
    const Matrix<C> sums = Operand<C>(a, layouts[0], product.trans_a, tf32, z) *
                           Operand<C>(b, layouts[1], product.trans_b, tf32, z);
    for (int64_t col = 0; col < sums.cols(); ++col) {
      for (int64_t row = 0; row < sums.rows(); ++row) {
        C value = alpha * sums(row, col);
        if (beta != 0) value += beta * static_cast<C>(ReadAs(c, lc.type, Index(lc, z, row, col)));
        if (product.adds_bias()) {
          const auto type = static_cast<cudaDataType>(product.bias_type);
          value += static_cast<C>(ReadAs(product.bias, type, row));
        }
        if (product.has_gelu()) {
          WriteAs(product.aux, ld.type, col * product.aux_ld + row, static_cast<double>(value));
          WriteGelu(d, ld.type, Index(ld, z, row, col), static_cast<float>(GeluTanh(value)));
          continue;
        }
        WriteAs(d, ld.type, Index(ld, z, row, col), static_cast<double>(value));
      }
    }
  }
}

template struct Work<float>;
template struct Work<double>;

bool IsSupported(const Product& product, const Layout* layouts) {
  const cudaDataType a = layouts[0].type, d = layouts[3].type;
  if (layouts[1].type != a || layouts[2].type != d) return false;
  const bool bias = product.adds_bias(), gelu = product.has_gelu();
  if (!bias && !gelu && product.epilogue != CUBLASLT_EPILOGUE_DEFAULT) return false;
  if (gelu) {
    const bool fits = layouts[3].order == CUBLASLT_ORDER_COL && layouts[3].batch == 1 &&
                      product.aux_ld >= static_cast<int64_t>(layouts[3].rows) &&
                      product.aux_ld % 8 == 0;
    if (!fits || d == CUDA_R_64F) return false;
  }
  if (bias && (product.bias_type != d || a == CUDA_R_64F)) return false;
  if (a == CUDA_R_64F) {
    return d == a && product.compute == CUBLAS_COMPUTE_64F && product.scale == CUDA_R_64F;
  }
  const bool f32 = product.compute == CUBLAS_COMPUTE_32F ||
                   (a == CUDA_R_32F && product.compute == CUBLAS_COMPUTE_32F_FAST_TF32);
  return f32 && product.scale == CUDA_R_32F && (d == a || d == CUDA_R_32F);
}

bool FitTogether(const Product& product, const Layout* layouts) {
  const auto rows = [](const Layout& x, int32_t t) { return t == CUBLAS_OP_T ? x.cols : x.rows; };
  const auto cols = [](const Layout& x, int32_t t) { return t == CUBLAS_OP_T ? x.rows : x.cols; };
  for (int i = 0; i < 4; ++i) {
    const Layout& x = layouts[i];
    const uint64_t length = x.order == CUBLASLT_ORDER_COL ? x.rows : x.cols;
    if (x.rows == 0 || x.cols == 0 || x.ld < static_cast<int64_t>(length)) return false;
    if (x.batch != layouts[3].batch) return false;
  }
  return rows(layouts[0], product.trans_a) == layouts[3].rows &&
         cols(layouts[0], product.trans_a) == rows(layouts[1], product.trans_b) &&
         cols(layouts[1], product.trans_b) == layouts[3].cols &&
         layouts[2].rows == layouts[3].rows && layouts[2].cols == layouts[3].cols;
}

}  // namespace cuda_emulation
