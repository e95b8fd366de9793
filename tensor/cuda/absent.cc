// SPDX-License-Identifier: Apache-2.0

// The functions of tensor/cuda in a build without CUDA: errors.
#include "apogee/core/error.h"
#include "apogee/tensor/cuda/cuda_context.h"
#include "apogee/tensor/cuda/cuda_graph.h"
#include "apogee/tensor/cuda/cuda_graph_call.h"
#include "apogee/tensor/cuda/runtime/event_marks.h"

namespace apogee {

absl::StatusOr<ContextPtr> CudaContext(const CudaOptions& /*options*/) {
  return absl::FailedPreconditionError(
      "device cuda: this build has no CUDA; configure where nvcc is found (-DAPOGEE_WITH_CUDA=ON), "
      "or use device cpu");
}

ContextPtr PinnedContext(const ContextPtr&) { Throw("PinnedContext: this build has no CUDA"); }

CudaProducts CudaProductsOf(const ContextPtr&) { Throw("CudaProductsOf: this build has no CUDA"); }

int NumCudaDevices() { return 0; }

std::unique_ptr<cuda::EventMarks> cuda::MakeEventMarks(const DeviceContext& /*context*/) {
  Throw("DeviceClock: this build has no CUDA");
}

struct CudaGraph::Impl {};

CudaGraph CudaGraph::Capture(const ContextPtr& /*context*/, const Tensors& /*inputs*/,
                             const std::function<void(const Tensors&)>& /*fn*/) {
  Throw("CudaGraph: this build has no CUDA; configure where nvcc is found (-DAPOGEE_WITH_CUDA=ON)");
}

CudaGraph::CudaGraph(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CudaGraph::~CudaGraph() = default;
CudaGraph::CudaGraph(CudaGraph&& other) noexcept = default;
CudaGraph& CudaGraph::operator=(CudaGraph&& other) noexcept = default;
bool CudaGraph::Takes(const Tensors& /*values*/) const { return false; }
void CudaGraph::Launch(const Tensors& /*values*/) const {}

struct CudaGraphCall::Impl {};

CudaGraphCall::CudaGraphCall(const ContextPtr& /*context*/) {
  Throw(
      "CudaGraphCall: this build has no CUDA; configure where nvcc is found "
      "(-DAPOGEE_WITH_CUDA=ON)");
}
CudaGraphCall::~CudaGraphCall() = default;
void CudaGraphCall::Run(const std::function<void()>& /*fn*/) {}
int64_t CudaGraphCall::num_made() const { return 0; }
int64_t CudaGraphCall::num_updated() const { return 0; }
bool CudaGraphCall::IsUnderWay(const DeviceContext& /*context*/) { return false; }

}  // namespace apogee
