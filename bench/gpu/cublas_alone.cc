// SPDX-License-Identifier: Apache-2.0

#include "apogee/bench/gpu/cublas_alone.h"

#include <memory>

#include "apogee/tensor/cuda/runtime/cublas_api.cuh"
#include "apogee/tensor/cuda/runtime/stream_context.cuh"

namespace apogee {
namespace {

constexpr size_t kWorkspaceBytes = 32 << 20;

// A row-major matrix is the transpose of a column-major one, so this computes
// c^T = op(b)^T op(a)^T. The cuBLASLt objects live as long as the program.
struct Product {
  Product(const Tensor& a, const Tensor& b, const Tensor& c, const CublasTransposes& transposes)
      : a(a),
        b(b),
        c(c),
        gpu(cuda::StreamContext::Of(*a.context())),
        workspace(gpu, kWorkspaceBytes) {
    gpu.Use();
    const auto rows = [](const Tensor& x) { return static_cast<uint64_t>(x.size(0)); };
    const auto cols = [](const Tensor& x) { return static_cast<uint64_t>(x.size(1)); };
    const auto layout = [&](cublasLtMatrixLayout_t* made, const Tensor& x) {
      Check(api.cublasLtMatrixLayoutCreate(made, CUDA_R_16BF, cols(x), rows(x), x.size(1)));
    };
    Check(api.cublasLtCreate(&handle));
    Check(api.cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t first = transposes.b_trans ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = transposes.a_trans ? CUBLAS_OP_T : CUBLAS_OP_N;
    Check(api.cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &first,
                                             sizeof(first)));
    Check(api.cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                             sizeof(second)));
    layout(&a_layout, a);
    layout(&b_layout, b);
    layout(&c_layout, c);
    cublasLtMatmulPreference_t preference = nullptr;
    Check(api.cublasLtMatmulPreferenceCreate(&preference));
    Check(api.cublasLtMatmulPreferenceSetAttribute(preference,
                                                   CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                   &kWorkspaceBytes, sizeof(kWorkspaceBytes)));
    int found = 0;
    Check(api.cublasLtMatmulAlgoGetHeuristic(handle, product, b_layout, a_layout, c_layout,
                                             c_layout, preference, 1, &algorithm, &found));
    Check(found == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : algorithm.state);
    Check(api.cublasLtMatmulPreferenceDestroy(preference));
  }

  void Run() const {
    const float one = 1, zero = 0;
    Check(api.cublasLtMatmul(handle, product, &one, b.raw(), b_layout, a.raw(), a_layout, &zero,
                             c.raw(), c_layout, c.raw(), c_layout, &algorithm.algo,
                             workspace.data<void>(), kWorkspaceBytes, gpu.stream()));
  }
  void Check(cublasStatus_t status) const { api.Check(status, "cuBLASLt alone"); }

  const cuda::CublasApi& api = cuda::CublasApi::Get();
  Tensor a, b, c;
  const cuda::StreamContext& gpu;
  Workspace workspace;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t a_layout = nullptr, b_layout = nullptr, c_layout = nullptr;
  cublasLtMatmulHeuristicResult_t algorithm = {};
};

}  // namespace

std::function<void()> CublasAlone(const Tensor& a, const Tensor& b, const Tensor& c,
                                  const CublasTransposes& transposes) {
  return [product = std::make_shared<Product>(a, b, c, transposes)] { product->Run(); };
}

}  // namespace apogee
