// SPDX-License-Identifier: Apache-2.0

// The calls of cuBLASLt that the library makes, on the emulated GPU. A product obeys every
// attribute that was set. It refuses the same things as the real one: types and epilogues that it
// lacks, pointers that are less aligned than promised, an algorithm of another problem.
//
// The real one has no algorithm for some products, and which ones is not documented. The
// environment variable APOGEE_EMULATED_CUBLASLT_REFUSES is read by every call, and names some to
// refuse, separated by commas:
//   bias, gelu   epilogues that add a bias; epilogues with GELU
//   unaligned    operands of 2 bytes whose rows do not begin at multiples of 16 bytes
//   ones         a size of 1
//   late         the heuristic has an algorithm for the above, and the product refuses it
//   all          every product
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>

#include "cublaslt_product.h"
#include "memory.h"
#include "stream.h"

namespace cuda_emulation {
namespace {

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

bool Refuses(const char* what) {
  const char* names = std::getenv("APOGEE_EMULATED_CUBLASLT_REFUSES");
  if (names == nullptr) return false;
  return ("," + std::string(names) + ",").find("," + std::string(what) + ",") != std::string::npos;
}

// `alignment`: of the addresses.
bool IsRefused(const Product& product, const Layout* layouts, const uint32_t* alignment) {
  if (Refuses("all") || (Refuses("bias") && product.adds_bias()) ||
      (Refuses("gelu") && product.has_gelu())) {
    return true;
  }
  const uint64_t k = product.trans_a == CUBLAS_OP_T ? layouts[0].rows : layouts[0].cols;
  if (Refuses("ones") && (layouts[3].rows == 1 || layouts[3].cols == 1 || k == 1)) return true;
  const bool halves = layouts[0].type == CUDA_R_16BF || layouts[0].type == CUDA_R_16F;
  for (int i = 0; halves && Refuses("unaligned") && i < 4; ++i) {
    const int64_t bytes = layouts[i].type == CUDA_R_32F ? 4 : 2;
    if (alignment[i] < 16 || layouts[i].ld * bytes % 16 != 0) return true;
    if (layouts[i].batch > 1 && layouts[i].stride * bytes % 16 != 0) return true;
  }
  return false;
}

}  // namespace
}  // namespace cuda_emulation

using cuda_emulation::Algorithm;
using cuda_emulation::As;
using cuda_emulation::IsDevice;
using cuda_emulation::IsRefused;
using cuda_emulation::Layout;
using cuda_emulation::Preference;
using cuda_emulation::Product;
using cuda_emulation::Read;
using cuda_emulation::Refuses;
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
  if (!Refuses("late") && IsRefused(product, layouts, wanted.alignment)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
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
  if (Refuses("late") && IsRefused(product, layouts, algorithm.alignment)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
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
