// SPDX-License-Identifier: Apache-2.0

// The calls of cuBLASLt that the library makes, on the emulated GPU. A product obeys every
// attribute that was set. It refuses the same things as the real one: types and epilogues that it
// lacks, pointers that are less aligned than promised, an algorithm of another problem.
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's AVX-512 intrinsics start from an undefined register (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numbers>
#include <string>
#include <string_view>

#include "memory.h"
#include "stream.h"

namespace cuda_emulation {
namespace {

struct Layout {
  cudaDataType type;
  uint64_t rows, cols;
  int64_t ld;
  int32_t order = CUBLASLT_ORDER_COL, batch = 1;
  int64_t stride = 0;
};

struct Product {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  int32_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int32_t bias_type = -1;
  const void* bias = nullptr;
  int64_t aux_ld = 0;
  void* aux = nullptr;

  bool adds_bias() const {
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  }
  bool has_gelu() const {
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  }
};

struct Preference {
  uint64_t workspace = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment[4] = {256, 256, 256, 256};  // of a, b, c, d
};

// What an algorithm needs: its problem (as a hash), its workspace, the alignments.
struct Algorithm {
  uint64_t problem, workspace;
  uint32_t alignment[4];
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

template <typename T, typename Handle>
T& As(Handle handle) {
  return *reinterpret_cast<T*>(handle);
}

template <typename T>
cublasStatus_t Read(T& to, const void* from, size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// A mistake in the hash would show as a refusal, never as a wrong result.
uint64_t Hash(const Product& product, const Layout* layouts) {
  std::string text;
  const auto add = [&text](const auto& value) { text += std::to_string(value) + ","; };
  add(static_cast<int>(product.compute));
  add(static_cast<int>(product.scale));
  add(product.trans_a);
  add(product.trans_b);
  add(product.epilogue);
  add(product.bias_type);
  add(product.aux_ld);
  for (int i = 0; i < 4; ++i) {
    add(static_cast<int>(layouts[i].type));
    add(layouts[i].rows);
    add(layouts[i].cols);
    add(layouts[i].ld);
    add(layouts[i].order);
    add(layouts[i].batch);
    add(layouts[i].stride);
  }
  return std::hash<std::string_view>{}(text);
}

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

template <typename C>
struct Work {
  Product product;
  Layout layouts[4];
  const void *a, *b, *c;
  void* d;
  C alpha, beta;
  void* workspace;
  size_t workspace_bytes;

  void operator()() const {
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
            value = GeluTanh(value);
          }
          WriteAs(d, ld.type, Index(ld, z, row, col), static_cast<double>(value));
        }
      }
    }
  }
};

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

}  // namespace
}  // namespace cuda_emulation

using cuda_emulation::Algorithm;
using cuda_emulation::As;
using cuda_emulation::IsDevice;
using cuda_emulation::Layout;
using cuda_emulation::Preference;
using cuda_emulation::Product;
using cuda_emulation::Read;
using cuda_emulation::StreamOf;
using cuda_emulation::Work;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                               : "CUBLAS_STATUS_INVALID_VALUE";
}
const char* cublasLtGetStatusString(cublasStatus_t) { return "emulated"; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new Product{.compute = compute, .scale = scale});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete &As<Product>(desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  auto& product = As<Product>(desc);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Read(product.trans_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return Read(product.trans_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Read(product.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return Read(product.bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Read(product.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return Read(product.aux_ld, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return Read(product.aux, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{.type = type, .rows = rows, .cols = cols, .ld = ld});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &As<Layout>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return Read(As<Layout>(layout).order, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return Read(As<Layout>(layout).batch, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return Read(As<Layout>(layout).stride, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete &As<Preference>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  auto& preference = As<Preference>(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return Read(preference.workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return Read(preference.reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return Read(preference.alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
                  value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  const Layout layouts[] = {As<Layout>(a), As<Layout>(b), As<Layout>(c), As<Layout>(d)};
  const auto& product = As<Product>(desc);
  const auto& wanted = As<Preference>(preference);
  *found = 0;
  if (requested < 1 || !cuda_emulation::FitTogether(product, layouts))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!cuda_emulation::IsSupported(product, layouts)) return CUBLAS_STATUS_NOT_SUPPORTED;
  // Some products want a workspace, like the real one's products with split sums.
  const uint64_t workspace =
      (wanted.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0 && layouts[0].cols % 2 == 0
          ? std::min<uint64_t>(wanted.workspace, 4096)
          : 0;
  Algorithm algorithm = {
      .problem = cuda_emulation::Hash(product, layouts), .workspace = workspace, .alignment = {}};
  std::memcpy(algorithm.alignment, wanted.alignment, sizeof(algorithm.alignment));
  results[0] = {};
  std::memcpy(&results[0].algo, &algorithm, sizeof(algorithm));
  results[0].workspaceSize = workspace;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  const Layout layouts[] = {As<Layout>(a_layout), As<Layout>(b_layout), As<Layout>(c_layout),
                            As<Layout>(d_layout)};
  const auto& product = As<Product>(desc);
  Algorithm algorithm = {};
  std::memcpy(&algorithm, algo, sizeof(algorithm));
  if (algorithm.problem != cuda_emulation::Hash(product, layouts))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (algorithm.workspace > workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
  const void* const addresses[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    const bool aligned = reinterpret_cast<uintptr_t>(addresses[i]) % algorithm.alignment[i] == 0;
    if (!aligned || !IsDevice(addresses[i])) return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (workspace_bytes > 0 && !IsDevice(workspace)) return CUBLAS_STATUS_INVALID_VALUE;
  const auto is_operand = [](const void* address) {
    return IsDevice(address) && reinterpret_cast<uintptr_t>(address) % 16 == 0;
  };
  if ((product.adds_bias() && !is_operand(product.bias)) ||
      (product.has_gelu() && !is_operand(product.aux))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto queue = [&]<typename C>(C) {
    StreamOf(stream).Queue(Work<C>{.product = product,
                                   .layouts = {layouts[0], layouts[1], layouts[2], layouts[3]},
                                   .a = a,
                                   .b = b,
                                   .c = c,
                                   .d = d,
                                   .alpha = *static_cast<const C*>(alpha),
                                   .beta = *static_cast<const C*>(beta),
                                   .workspace = workspace,
                                   .workspace_bytes = workspace_bytes});
  };
  if (product.scale == CUDA_R_64F) {
    queue(double{});
  } else {
    queue(float{});
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
