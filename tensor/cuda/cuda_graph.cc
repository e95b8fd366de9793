// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/cuda/cuda_graph.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "apogee/core/error.h"
#include "apogee/tensor/cuda/runtime/cuda_allocator.cuh"
#include "apogee/tensor/cuda/runtime/kept_uploads.cuh"
#include "apogee/tensor/cuda/runtime/stream_context.cuh"

namespace apogee {
namespace {

using cuda::CheckCuda;
using cuda::StreamContext;

const StreamContext& GpuOf(const ContextPtr& context) {
  APOGEE_CHECK(context != nullptr && context->device().type == DeviceType::kCuda,
               "CudaGraph: needs the context of a GPU, got ",
               context == nullptr ? "null" : context->device().ToString());
  APOGEE_CHECK(context->recorder() == nullptr,
               "CudaGraph: a graph is being captured on this context; capture or launch another "
               "one outside of it");
  return StreamContext::Of(*context);
}

cuda::CudaAllocator& AllocatorOf(const StreamContext& gpu) {
  return static_cast<cuda::CudaAllocator&>(gpu.allocator());
}

}  // namespace

struct CudaGraph::Impl {
  explicit Impl(ContextPtr on) : context(std::move(on)), gpu(GpuOf(context)) {}
  ~Impl();
  void Record(const std::function<void(const Tensors&)>& fn);
  // The values on the host of inputs that the graph's checks read there; others are undefined.
  Tensors HostValues(const Tensors& values) const;
  bool TakesShapes(const Tensors& values) const;

  ContextPtr context;
  const StreamContext& gpu;
  cuda::CudaGraphRecorder recorder;
  Tensors inputs;
  cudaGraphExec_t exec = nullptr;
};

CudaGraph::Impl::~Impl() {
  cudaSetDevice(context->device().index);
  // Queued replays use the memory that is released here.
  cudaStreamSynchronize(gpu.stream());
  if (exec != nullptr) cudaGraphExecDestroy(exec);
  inputs.clear();
  recorder.ForgetTensors();
  AllocatorOf(gpu).ReleaseGraph(&recorder);
}

void CudaGraph::Impl::Record(const std::function<void(const Tensors&)>& fn) {
  gpu.Synchronize();  // nothing may wait within the capture
  cudaGraph_t graph = nullptr;
  // Ends the capture in every case. If there are several errors, the first one is thrown.
  const auto end = [&] {
    context->set_recorder(nullptr);
    const cudaError_t ended = cudaStreamEndCapture(gpu.stream(), &graph);
    AllocatorOf(gpu).EndGraph();
    return ended;
  };
  // Relaxed: other threads may make calls that other modes forbid during a capture, and the
  // allocator may take memory from the driver. This context's own waits throw Error.
  AllocatorOf(gpu).BeginGraph(&recorder);
  const cudaError_t begun = cudaStreamBeginCapture(gpu.stream(), cudaStreamCaptureModeRelaxed);
  if (begun != cudaSuccess) AllocatorOf(gpu).EndGraph();
  CheckCuda(begun, "begin the capture of a graph");
  context->set_recorder(&recorder);
  try {
    fn(inputs);
  } catch (...) {
    end();
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();  // clears the error, so that the next call does not report it
    throw;
  }
  const cudaError_t ended = end();
  if (ended != cudaSuccess) cudaGetLastError();
  CheckCuda(ended, "end the capture of a graph");
  const cudaError_t made = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  if (made != cudaSuccess) cudaGetLastError();
  CheckCuda(made, "instantiate a graph");
}

bool CudaGraph::Impl::TakesShapes(const Tensors& values) const {
  if (values.size() != inputs.size()) return false;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values[i].defined() || values[i].shape() != inputs[i].shape() ||
        values[i].dtype() != inputs[i].dtype()) {
      return false;
    }
  }
  return true;
}

CudaGraph::Tensors CudaGraph::Impl::HostValues(const Tensors& values) const {
  Tensors host(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (recorder.Reads(i)) host[i] = values[i].Detach().Contiguous().ToHost();
  }
  return host;
}

CudaGraph CudaGraph::Capture(const ContextPtr& context, const Tensors& inputs,
                             const std::function<void(const Tensors&)>& fn) {
  auto impl = std::make_unique<Impl>(context);
  for (const Tensor& input : inputs) {
    APOGEE_CHECK(input.defined(), "CudaGraph: an input is undefined");
    const Tensor own = Tensor::Empty(input.shape(), input.dtype(), context);
    own.CopyFrom(input);
    impl->inputs.push_back(own);
    // Only indices are read on the host.
    const Tensor host =
        input.dtype() == DType::kI64 ? input.Detach().Contiguous().ToHost() : Tensor();
    impl->recorder.AddInput(own, host);
  }
  impl->Record(fn);
  return CudaGraph(std::move(impl));
}

CudaGraph::CudaGraph(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CudaGraph::~CudaGraph() = default;
CudaGraph::CudaGraph(CudaGraph&& other) noexcept = default;
CudaGraph& CudaGraph::operator=(CudaGraph&& other) noexcept = default;

bool CudaGraph::Takes(const Tensors& values) const {
  return impl_->TakesShapes(values) && impl_->recorder.Takes(impl_->HostValues(values));
}

void CudaGraph::Launch(const Tensors& values) const {
  GpuOf(impl_->context);
  APOGEE_CHECK(impl_->TakesShapes(values), "CudaGraph: Launch needs ", impl_->inputs.size(),
               " tensors of the shapes and dtypes that were captured; capture another graph for "
               "others");
  const Tensors host = impl_->HostValues(values);
  impl_->recorder.CheckIndices(host);
  APOGEE_CHECK(impl_->recorder.Takes(host),
               "CudaGraph: the number of ignored targets differs from the capture, and the graph's "
               "mean depends on it; call Takes() first, and capture another graph if it is false");
  for (size_t i = 0; i < values.size(); ++i) {
    impl_->inputs[i].CopyFrom(values[i].Detach());
  }
  impl_->gpu.Use();
  CheckCuda(cudaGraphLaunch(impl_->exec, impl_->gpu.stream()), "launch a graph");
}

}  // namespace apogee
