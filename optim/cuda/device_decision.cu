// SPDX-License-Identifier: Apache-2.0

#include <cmath>
#include <utility>

#include "apogee/optim/core/options_agreement.h"
#include "apogee/optim/cuda/device/norm_terms.cuh"
#include "apogee/optim/cuda/kernels.h"
#include "apogee/tensor/cuda/runtime/kept_uploads.cuh"
#include "apogee/tensor/cuda/runtime/stream_context.cuh"

namespace apogee::optim::cuda {
namespace {

using apogee::cuda::CheckCuda;
using apogee::cuda::StreamContext;

template <bool kMax>
struct StoreMarks {
  double* marks;

  __device__ void operator()(const MarkChunk& chunk, int64_t, const double (&totals)[1]) const {
    double* to = marks + 2 * chunk.index;
    to[0] = std::isfinite(totals[0]) ? kGradPresent : kGradNonFinite;
    to[1] = kMax ? totals[0] : totals[0] / chunk.replicas;
  }
};

// Runs as one block. Adds the norms in the order of the parameters, as the host does.
__global__ void __launch_bounds__(kTileThreads)
    DecideKernel(const DeviceDecision::Settings settings, const double* marks, int64_t count,
                 StepGate* gate) {
  __shared__ double states[kTileThreads], norms[kTileThreads];
  double total = 0;
  int64_t first_nonfinite = -1;
  for (int64_t base = 0; base < count; base += kTileThreads) {
    const int64_t here = count - base < kTileThreads ? count - base : kTileThreads;
    if (threadIdx.x < here) {
      states[threadIdx.x] = marks[2 * (base + threadIdx.x)];
      norms[threadIdx.x] = marks[2 * (base + threadIdx.x) + 1];
    }
    __syncthreads();
    for (int64_t k = 0; threadIdx.x == 0 && k < here; ++k) {
      const double norm = norms[k];
      total = settings.kind != NormKind::kMax ? total + norm : Max()(total, norm);
      if (first_nonfinite < 0 && states[k] >= kGradNonFinite) first_nonfinite = base + k;
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  const double norm = settings.kind == NormKind::kL2 ? sqrt(total) : total;
  gate->grad_norm = norm * settings.inv_loss_scale;
  gate->first_nonfinite = first_nonfinite;
  gate->options_differ =
      settings.has_digest && !DigestsAgree(settings.kind == NormKind::kMax, marks + 2 * count);
  gate->skip = gate->options_differ || (settings.check_finite && first_nonfinite >= 0);
  gate->clip_factor = 1;
  if (settings.max_norm > 0 && !gate->skip) {
    const double factor = settings.max_norm / (gate->grad_norm + 1e-6);
    gate->clip_factor = factor > 1 ? 1 : factor;
  }
  gate->grad_scale = gate->clip_factor * settings.inv_loss_scale;
}

// The outcome is copied to pinned memory, followed by an event. Wait() therefore waits only for
// this step, not for work queued later.
class GpuDecision : public DeviceDecision {
 public:
  explicit GpuDecision(ContextPtr context)
      : context_(std::move(context)), gate_(*context_, int64_t{sizeof(StepGate)}) {
    StreamContext::Of(*context_).Use();
    void* pinned = nullptr;
    CheckCuda(cudaHostAlloc(&pinned, sizeof(StepGate), cudaHostAllocDefault),
              "pin memory of the host for the outcome of steps");
    outcome_ = static_cast<StepGate*>(pinned);
    const cudaError_t error = cudaEventCreateWithFlags(&arrived_, cudaEventDisableTiming);
    if (error != cudaSuccess) cudaFreeHost(outcome_);
    CheckCuda(error, "make an event for the outcome of steps");
  }
  ~GpuDecision() override {
    cudaEventSynchronize(arrived_);  // the copy may be on its way
    cudaEventDestroy(arrived_);
    cudaFreeHost(outcome_);
  }

  const ContextPtr& context() const override { return context_; }

  void Mark(NormKind kind, std::span<const MarkChunk> chunks, double* marks) override {
    switch (kind) {
      case NormKind::kL2:
        return ReduceChunks<1, Sum>(*context_, chunks, NormTerms<NormKind::kL2>{},
                                    StoreMarks<false>{marks});
      case NormKind::kL1:
        return ReduceChunks<1, Sum>(*context_, chunks, NormTerms<NormKind::kL1>{},
                                    StoreMarks<false>{marks});
      case NormKind::kMax:
        return ReduceChunks<1, Max>(*context_, chunks, NormTerms<NormKind::kMax>{},
                                    StoreMarks<true>{marks});
    }
  }

  const StepGate* Decide(const Settings& settings, const double* marks, int64_t count) override {
    StepGate* const gate = gate_.data<StepGate>();
    Launch(*context_, {.threads = {unsigned{kTileThreads}}}, &DecideKernel, settings, marks, count,
           gate);
    const cudaStream_t stream = StreamContext::Of(*context_).stream();
    CheckCuda(cudaMemcpyAsync(outcome_, gate, sizeof(StepGate), cudaMemcpyDefault, stream),
              "copy the outcome of a step to the host");
    const auto record = [this, stream] {
      CheckCuda(cudaEventRecord(arrived_, stream), "copy the outcome of a step to the host");
    };
    // The host waits for the event, so a graph has no part of it.
    GraphRecorder* const graph = context_->recorder();
    if (graph != nullptr) {
      static_cast<apogee::cuda::CudaGraphRecorder*>(graph)->AfterLaunch(record);
    } else {
      record();
    }
    return gate;
  }

  StepGate Wait() override {
    StreamContext::Of(*context_).Use();
    CheckCuda(cudaEventSynchronize(arrived_), "wait for the outcome of a step");
    return *outcome_;
  }

 private:
  ContextPtr context_;
  Workspace gate_;
  StepGate* outcome_ = nullptr;
  cudaEvent_t arrived_ = nullptr;
};

}  // namespace

std::unique_ptr<DeviceDecision> MakeGpuDecision(const ContextPtr& context) {
  return std::make_unique<GpuDecision>(context);
}

}  // namespace apogee::optim::cuda
