// SPDX-License-Identifier: Apache-2.0

// A matrix product of cuBLASLt: its description, the combinations that the emulation supports, and
// the computation. Private to the emulation.
#ifndef APOGEE_TESTS_CUDA_EMULATION_CUBLASLT_PRODUCT_H_
#define APOGEE_TESTS_CUDA_EMULATION_CUBLASLT_PRODUCT_H_

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace cuda_emulation {

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

// Whether the emulation has this product, of a, b, c and d.
bool IsSupported(const Product& product, const Layout* layouts);
// Whether the sizes of a, b, c and d are those of one product.
bool FitTogether(const Product& product, const Layout* layouts);

// d = alpha * op(a) * op(b) + beta * c and the epilogue. C is float or double.
template <typename C>
struct Work {
  Product product;
  Layout layouts[4];
  const void *a, *b, *c;
  void* d;
  C alpha, beta;
  void* workspace;
  size_t workspace_bytes;

  void operator()() const;
};

}  // namespace cuda_emulation

#endif  // APOGEE_TESTS_CUDA_EMULATION_CUBLASLT_PRODUCT_H_
