// SPDX-License-Identifier: Apache-2.0

// The functions of cuBLASLt that matrix products call. They are loaded by the first product:
// nothing links against cuBLASLt. Private to tensor/cuda.
//
//   const CublasApi& api = CublasApi::Get();                     // throws Error: not found
//   api.Check(api.cublasLtCreate(&handle), "cublasLtCreate");    // throws Error: its name and text
#ifndef APOGEE_TENSOR_CUDA_RUNTIME_CUBLAS_API_CUH_
#define APOGEE_TENSOR_CUDA_RUNTIME_CUBLAS_API_CUH_

#include <cublasLt.h>

#include <string>

namespace apogee::cuda {

// The environment variable that names the library to load, instead of the search.
inline constexpr const char* kCublasVariable = "APOGEE_CUBLASLT";

#define APOGEE_FOR_EACH_CUBLAS_FUNCTION(X) \
  X(cublasLtCreate)                        \
  X(cublasLtDestroy)                       \
  X(cublasLtGetStatusName)                 \
  X(cublasLtGetStatusString)               \
  X(cublasLtMatmul)                        \
  X(cublasLtMatmulAlgoGetHeuristic)        \
  X(cublasLtMatmulDescCreate)              \
  X(cublasLtMatmulDescDestroy)             \
  X(cublasLtMatmulDescSetAttribute)        \
  X(cublasLtMatmulPreferenceCreate)        \
  X(cublasLtMatmulPreferenceDestroy)       \
  X(cublasLtMatmulPreferenceSetAttribute)  \
  X(cublasLtMatrixLayoutCreate)            \
  X(cublasLtMatrixLayoutDestroy)           \
  X(cublasLtMatrixLayoutSetAttribute)

struct CublasApi {
#define APOGEE_DECLARE_FUNCTION(name) decltype(&::name) name = nullptr;
  APOGEE_FOR_EACH_CUBLAS_FUNCTION(APOGEE_DECLARE_FUNCTION)
#undef APOGEE_DECLARE_FUNCTION

  // Throws Error if no cuBLASLt is found, or if it lacks a function. Then the next call looks
  // again.
  static const CublasApi& Get();

  // Throws Error "matmul: what: <cuBLASLt's name and text of the status>".
  void Check(cublasStatus_t status, const std::string& what) const;
};

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_RUNTIME_CUBLAS_API_CUH_
