// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/cuda/runtime/cublas.h"

#include <algorithm>
#include <compare>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "apogee/core/error.h"
#include "apogee/tensor/cuda/runtime/cublas_api.cuh"

namespace apogee::cuda {
namespace {

constexpr size_t kMaxWorkspace = 32 << 20;  // cuBLAS's own default on Hopper

cudaDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    default:
      return CUDA_R_64F;
  }
}

// The largest power of two, up to 256, that divides the address.
uint32_t AlignmentOf(const void* address) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(address) | 256;
  return static_cast<uint32_t>(bits & -bits);
}

// Everything that the choice of an algorithm depends on. Of pointers, only the alignment counts.
struct Problem {
  DType dtype, c_dtype;
  bool bias, gelu, a_trans, b_trans, allow_tf32;
  int64_t batch, m, n, k, lda, ldb, ldc, a_batch, b_batch, c_batch;
  uint32_t a_alignment, b_alignment, c_alignment;  // c_alignment for gelu: of the GELU's result

  auto operator<=>(const Problem&) const = default;
};

// A vector that is a stored column is read as a row.
void ColumnToRow(bool& trans, int64_t& ld, int64_t rows, int64_t cols) {
  if (cols != 1 || ld != 1) return;
  trans = !trans;
  ld = rows;
}

Problem ProblemOf(const StreamContext& gpu, MatMulArgs args) {
  ColumnToRow(args.a_trans, args.lda, args.a_trans ? args.k : args.m,
              args.a_trans ? args.m : args.k);
  ColumnToRow(args.b_trans, args.ldb, args.b_trans ? args.n : args.k,
              args.b_trans ? args.k : args.n);
  // The stride of a single row is not used and may be anything from the row's length on. One that
  // keeps rows aligned is sure to have an algorithm.
  const auto stride = [](int64_t ld, int64_t rows, int64_t cols) {
    return rows == 1 ? AlignedStride(cols) : ld;
  };
  return {.dtype = args.dtype,
          .c_dtype = args.c_dtype,
          .bias = args.bias != nullptr,
          .gelu = false,
          .a_trans = args.a_trans,
          .b_trans = args.b_trans,
          .allow_tf32 = gpu.allow_tf32(),
          .batch = args.batch,
          .m = args.m,
          .n = args.n,
          .k = args.k,
          .lda = args.a_trans ? stride(args.lda, args.k, args.m) : stride(args.lda, args.m, args.k),
          .ldb = args.b_trans ? stride(args.ldb, args.n, args.k) : stride(args.ldb, args.k, args.n),
          .ldc = stride(args.ldc, args.m, args.n),
          .a_batch = args.a_batch,
          .b_batch = args.b_batch,
          .c_batch = args.c_batch,
          .a_alignment = AlignmentOf(args.a),
          .b_alignment = AlignmentOf(args.b),
          .c_alignment = AlignmentOf(args.c)};
}

template <typename Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, cublasStatus_t (*)(Handle)>;

template <typename Handle, typename Create, typename... Args>
Owned<Handle> Make(cublasStatus_t (*destroy)(Handle), const char* what, Create create,
                   Args... args) {
  Handle handle = nullptr;
  CublasApi::Get().Check(create(&handle, args...), what);
  return Owned<Handle>(handle, destroy);
}

template <typename Set, typename Handle, typename Attribute, typename T>
void SetAttribute(Set set, const Handle& handle, Attribute attribute, const T& value) {
  CublasApi::Get().Check(set(handle.get(), attribute, &value, sizeof(value)), "set an attribute");
}

// The layout of a stored row-major matrix. cuBLASLt reads it as its column-major transpose.
Owned<cublasLtMatrixLayout_t> LayoutOf(DType dtype, int64_t rows, int64_t cols, int64_t ld,
                                       int64_t batch, int64_t batch_stride) {
  const CublasApi& api = CublasApi::Get();
  Owned<cublasLtMatrixLayout_t> layout = Make(
      api.cublasLtMatrixLayoutDestroy, "cublasLtMatrixLayoutCreate", api.cublasLtMatrixLayoutCreate,
      TypeOf(dtype), static_cast<uint64_t>(cols), static_cast<uint64_t>(rows), ld);
  if (batch > 1) {
    const auto set = api.cublasLtMatrixLayoutSetAttribute;
    SetAttribute(set, layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(batch));
    SetAttribute(set, layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, batch_stride);
  }
  return layout;
}

// The product as cuBLASLt computes it: c^T = op(b)^T op(a)^T. Its first operand is our b.
struct MatMulPlan {
  Owned<cublasLtMatmulDesc_t> product;
  Owned<cublasLtMatrixLayout_t> a, b, c;
  cublasLtMatmulHeuristicResult_t algorithm = {};
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;  // whether there is an algorithm
};

Owned<cublasLtMatmulDesc_t> ProductOf(const Problem& p) {
  const CublasApi& api = CublasApi::Get();
  const cublasComputeType_t compute = p.dtype == DType::kF64 ? CUBLAS_COMPUTE_64F
                                      : p.dtype == DType::kF32 && p.allow_tf32
                                          ? CUBLAS_COMPUTE_32F_FAST_TF32
                                          : CUBLAS_COMPUTE_32F;
  Owned<cublasLtMatmulDesc_t> product =
      Make(api.cublasLtMatmulDescDestroy, "cublasLtMatmulDescCreate", api.cublasLtMatmulDescCreate,
           compute, p.dtype == DType::kF64 ? CUDA_R_64F : CUDA_R_32F);
  const auto set = api.cublasLtMatmulDescSetAttribute;
  SetAttribute(set, product, CUBLASLT_MATMUL_DESC_TRANSA, p.b_trans ? CUBLAS_OP_T : CUBLAS_OP_N);
  SetAttribute(set, product, CUBLASLT_MATMUL_DESC_TRANSB, p.a_trans ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (p.bias || p.gelu) {
    SetAttribute(set, product, CUBLASLT_MATMUL_DESC_EPILOGUE,
                 !p.gelu  ? CUBLASLT_EPILOGUE_BIAS
                 : p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                          : CUBLASLT_EPILOGUE_GELU_AUX);
  }
  if (p.bias) {
    SetAttribute(set, product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                 static_cast<int32_t>(TypeOf(p.c_dtype)));
  }
  if (p.gelu) SetAttribute(set, product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.ldc);
  return product;
}

Owned<cublasLtMatmulPreference_t> PreferenceOf(const Problem& p) {
  const CublasApi& api = CublasApi::Get();
  Owned<cublasLtMatmulPreference_t> preference =
      Make(api.cublasLtMatmulPreferenceDestroy, "cublasLtMatmulPreferenceCreate",
           api.cublasLtMatmulPreferenceCreate);
  const auto set = api.cublasLtMatmulPreferenceSetAttribute;
  SetAttribute(set, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMaxWorkspace);
  // Partial sums are kept in the compute type and added in a separate step. They are not rounded to
  // the output's type in between, and not added in the order in which blocks happen to end.
  SetAttribute(set, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
               static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  SetAttribute(set, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.b_alignment);
  SetAttribute(set, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.a_alignment);
  SetAttribute(set, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.c_alignment);
  SetAttribute(set, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.c_alignment);
  return preference;
}

// The epilogue's operands of one call. The algorithm may depend on whether they are null.
struct EpilogueOperands {
  const void* bias;
  void* pre;  // receives the operand of the GELU
};

void SetOperands(const MatMulPlan& plan, const EpilogueOperands& operands) {
  const auto set = CublasApi::Get().cublasLtMatmulDescSetAttribute;
  if (operands.bias != nullptr) {
    SetAttribute(set, plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  }
  if (operands.pre != nullptr) {
    SetAttribute(set, plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.pre);
  }
}

MatMulPlan MakePlan(cublasLtHandle_t handle, const Problem& p, const EpilogueOperands& operands) {
  const CublasApi& api = CublasApi::Get();
  MatMulPlan plan = {.product = ProductOf(p),
                     .a = LayoutOf(p.dtype, p.a_trans ? p.k : p.m, p.a_trans ? p.m : p.k, p.lda,
                                   p.batch, p.a_batch),
                     .b = LayoutOf(p.dtype, p.b_trans ? p.n : p.k, p.b_trans ? p.k : p.n, p.ldb,
                                   p.batch, p.b_batch),
                     .c = LayoutOf(p.c_dtype, p.m, p.n, p.ldc, p.batch, p.c_batch)};
  SetOperands(plan, operands);
  const Owned<cublasLtMatmulPreference_t> preference = PreferenceOf(p);
  int found = 0;
  plan.status = api.cublasLtMatmulAlgoGetHeuristic(handle, plan.product.get(), plan.b.get(),
                                                   plan.a.get(), plan.c.get(), plan.c.get(),
                                                   preference.get(), 1, &plan.algorithm, &found);
  if (plan.status == CUBLAS_STATUS_SUCCESS) {
    plan.status = found == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : plan.algorithm.state;
  }
  if (plan.status != CUBLAS_STATUS_NOT_SUPPORTED) {
    api.Check(plan.status, "cublasLtMatmulAlgoGetHeuristic");
  }
  return plan;
}

}  // namespace

struct CublasHandle::Impl {
  const CublasApi& api = CublasApi::Get();
  Owned<cublasLtHandle_t> handle = {nullptr, api.cublasLtDestroy};
  std::mutex mutex;  // held during a call: a plan's product holds one call's bias
  std::map<Problem, MatMulPlan> plans;
  CudaProducts products;

  MatMulPlan& PlanOf(const Problem& problem, const EpilogueOperands& operands);
  // Queues the problem's product; the result goes to `c`. Returns false if there is no algorithm.
  bool TryRun(const StreamContext& gpu, const Problem& problem, const EpilogueOperands& operands,
              const MatMulArgs& args, void* c);
};

MatMulPlan& CublasHandle::Impl::PlanOf(const Problem& problem, const EpilogueOperands& operands) {
  auto found = plans.find(problem);
  if (found == plans.end()) {
    found = plans.emplace(problem, MakePlan(handle.get(), problem, operands)).first;
  }
  return found->second;
}

bool CublasHandle::Impl::TryRun(const StreamContext& gpu, const Problem& problem,
                                const EpilogueOperands& operands, const MatMulArgs& args, void* c) {
  gpu.Use();
  std::lock_guard lock(mutex);
  MatMulPlan& plan = PlanOf(problem, operands);
  if (plan.status == CUBLAS_STATUS_SUCCESS) {
    SetOperands(plan, operands);
    const float alpha = static_cast<float>(args.alpha), beta = static_cast<float>(args.beta);
    const bool f64 = args.dtype == DType::kF64;
    const size_t bytes = plan.algorithm.workspaceSize;
    std::optional<Workspace> workspace;
    if (bytes > 0) workspace.emplace(gpu, static_cast<int64_t>(bytes));
    // It may still refuse what its heuristic has chosen.
    plan.status = api.cublasLtMatmul(
        handle.get(), plan.product.get(), f64 ? static_cast<const void*>(&args.alpha) : &alpha,
        args.b, plan.b.get(), args.a, plan.a.get(),
        f64 ? static_cast<const void*>(&args.beta) : &beta, c, plan.c.get(), c, plan.c.get(),
        &plan.algorithm.algo, workspace ? workspace->data<void>() : nullptr, bytes, gpu.stream());
  }
  if (plan.status == CUBLAS_STATUS_NOT_SUPPORTED) {
    if (problem.bias || problem.gelu) ++products.unfused;
    return false;
  }
  if (const cublasStatus_t status = plan.status; status != CUBLAS_STATUS_SUCCESS) {
    plans.erase(problem);
    api.Check(status, "cublasLtMatmul");
  }
  ++products.cublas;
  return true;
}

CublasHandle::CublasHandle() : impl_(std::make_unique<Impl>()) {
  cublasLtHandle_t handle = nullptr;
  impl_->api.Check(impl_->api.cublasLtCreate(&handle), "cublasLtCreate");
  impl_->handle.reset(handle);
}

CublasHandle::~CublasHandle() = default;

bool CublasHandle::Takes(DType dtype, DType c_dtype) {
  return dtype == c_dtype || (DTypeSize(dtype) == 2 && c_dtype == DType::kF32);
}

bool CublasHandle::TakesBias(const MatMulArgs& args) {
  return args.bias_dtype == args.c_dtype && args.c_dtype != DType::kF64 &&
         AlignmentOf(args.bias) >= 16;
}

bool CublasHandle::TryMatMul(const StreamContext& gpu, const MatMulArgs& args) {
  return impl_->TryRun(gpu, ProblemOf(gpu, args), {.bias = args.bias, .pre = nullptr}, args,
                       args.c);
}

bool CublasHandle::TryGelu(const StreamContext& gpu, const MatMulActivationArgs& args) {
  const MatMulArgs& product = args.product;
  // The operand of the GELU, which is stored too, needs rows that are whole multiples of 16 bytes.
  if (product.batch != 1 || product.ldc % 8 != 0 || AlignmentOf(product.c) < 16) return false;
  Problem problem = ProblemOf(gpu, product);
  problem.gelu = true;
  problem.c_alignment = AlignmentOf(args.y);
  return impl_->TryRun(gpu, problem, {.bias = product.bias, .pre = product.c}, product, args.y);
}

CudaProducts CublasHandle::products() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->products;
}

void CublasHandle::Count(int64_t CudaProducts::*way) {
  std::lock_guard lock(impl_->mutex);
  ++(impl_->products.*way);
}

}  // namespace apogee::cuda
