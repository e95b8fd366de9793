// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/cuda/cuda_graph_call.h"

#include <cuda_runtime_api.h>

#include <exception>

#include "apogee/core/error.h"
#include "apogee/tensor/cuda/runtime/cuda_allocator.cuh"
#include "apogee/tensor/cuda/runtime/kept_uploads.cuh"
#include "apogee/tensor/cuda/runtime/stream_context.cuh"

namespace apogee {

using cuda::CheckCuda;
using cuda::StreamContext;

struct CudaGraphCall::Impl {
  explicit Impl(const ContextPtr& on) : context(on), gpu(StreamContext::Of(*on)) {}
  ~Impl();
  // Frees copies of earlier calls, once the GPU has read them.
  void FreeOldUploads();
  // Calls fn. Returns the work that it queued, or null if the capture became invalid.
  cudaGraph_t Capture(const std::function<void()>& fn, std::exception_ptr& thrown);
  // Makes `exec` the work of `graph`.
  void Take(cudaGraph_t graph);
  void Launch();

  ContextPtr context;
  const StreamContext& gpu;
  cuda::CudaGraphRecorder recorder{/*once=*/true};
  cudaGraphExec_t exec = nullptr;
  int64_t num_made = 0, num_updated = 0;
};

CudaGraphCall::Impl::~Impl() {
  cudaSetDevice(context->device().index);
  cudaStreamSynchronize(gpu.stream());  // queued launches read the recorder's uploads
  if (exec != nullptr) cudaGraphExecDestroy(exec);
}

cudaGraph_t CudaGraphCall::Impl::Capture(const std::function<void()>& fn,
                                         std::exception_ptr& thrown) {
  recorder.Restart();
  recorder.uploads.Rewind();
  recorder.after_launch.clear();
  gpu.Use();
  FreeOldUploads();
  // Relaxed: other threads, and the allocator, may make calls that other modes forbid.
  CheckCuda(cudaStreamBeginCapture(gpu.stream(), cudaStreamCaptureModeRelaxed),
            "begin the capture of a graph");
  context->set_recorder(&recorder);
  try {
    fn();
  } catch (...) {
    thrown = std::current_exception();
  }
  context->set_recorder(nullptr);
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(gpu.stream(), &graph);
  if (ended == cudaSuccess) return graph;
  cudaGetLastError();  // clears the error, so that the next call does not report it
  if (thrown == nullptr) CheckCuda(ended, "end the capture of a graph");
  return nullptr;
}

void CudaGraphCall::Impl::FreeOldUploads() {
  constexpr size_t kMostBlocks = 64;  // a host that is always ahead waits then
  if (recorder.uploads.num_others() == 0) return;
  if (recorder.uploads.num_others() > kMostBlocks) gpu.Synchronize();
  const bool is_idle = cudaStreamQuery(gpu.stream()) == cudaSuccess;
  cudaGetLastError();
  if (is_idle) recorder.uploads.FreeOthers();
}

void CudaGraphCall::Impl::Take(cudaGraph_t graph) {
  if (exec != nullptr) {
    cudaGraphExecUpdateResultInfo info = {};
    if (cudaGraphExecUpdate(exec, graph, &info) == cudaSuccess) {
      ++num_updated;
      return;
    }
    cudaGetLastError();
    gpu.Synchronize();  // the old graph may be running
    cudaGraphExecDestroy(exec);
    exec = nullptr;
  }
  CheckCuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate a graph");
  ++num_made;
}

void CudaGraphCall::Impl::Launch() {
  CheckCuda(cudaGraphLaunch(exec, gpu.stream()), "launch a graph");
  for (const std::function<void()>& each : recorder.after_launch) each();
}

CudaGraphCall::CudaGraphCall(const ContextPtr& context) {
  APOGEE_CHECK(context != nullptr && context->device().type == DeviceType::kCuda,
               "CudaGraphCall: needs the context of a GPU, got ",
               context == nullptr ? "null" : context->device().ToString());
  impl_ = std::make_unique<Impl>(context);
}

CudaGraphCall::~CudaGraphCall() = default;

void CudaGraphCall::Run(const std::function<void()>& fn) {
  APOGEE_CHECK(impl_->context->recorder() == nullptr,
               "CudaGraphCall: a graph is being captured on this context; run it outside of that");
  auto& allocator = static_cast<cuda::CudaAllocator&>(impl_->gpu.allocator());
  struct Hold {
    cuda::CudaAllocator& allocator;
    explicit Hold(cuda::CudaAllocator& of) : allocator(of) { allocator.HoldFrees(true); }
    ~Hold() { allocator.HoldFrees(false); }
  };
  std::exception_ptr thrown;
  {
    const Hold hold(allocator);
    const cudaGraph_t graph = impl_->Capture(fn, thrown);
    if (graph != nullptr) {
      const std::unique_ptr<CUgraph_st, cudaError_t (*)(cudaGraph_t)> owner(graph,
                                                                            &cudaGraphDestroy);
      impl_->Take(graph);
      impl_->Launch();
    }
  }
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

int64_t CudaGraphCall::num_made() const { return impl_->num_made; }
int64_t CudaGraphCall::num_updated() const { return impl_->num_updated; }
int64_t CudaGraphCall::num_old_uploads() const {
  return static_cast<int64_t>(impl_->recorder.uploads.num_others());
}

bool CudaGraphCall::IsUnderWay(const DeviceContext& context) {
  return context.device().type == DeviceType::kCuda && context.recorder() != nullptr &&
         static_cast<const cuda::CudaGraphRecorder*>(context.recorder())->launches_once;
}

}  // namespace apogee
