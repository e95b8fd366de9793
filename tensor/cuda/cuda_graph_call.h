// SPDX-License-Identifier: Apache-2.0

// CudaGraphCall: runs a function whose work on a GPU is launched as one CUDA graph, at every call
// with the numbers of that call.
//
//   CudaGraphCall call(context);
//   for (...) {
//     call.Run([&] { optimizer.step(); });   // captures its work, updates the graph, launches it
//   }
//
// CudaGraph (cuda_graph.h) captures a function once and replays it, so numbers that the host
// computes are those of the capture. Here the function runs on the host in every call. If the work
// is of the same kind as in the call before (as many kernels and copies in the same order), the
// arguments of its kernels and copies go into the graph of that call. Otherwise another graph is
// made, which waits for the GPU. Either way the GPU computes what it would if the function were
// called without a graph, in the same order with all other work of the context.
//
// Run the function once without a graph, so that everything that a first run sets up (tables, plans
// of cuBLASLt) exists. One thread uses the context while Run runs.
//
// In the function, these throw Error and name the call: reading values on the host, other graphs,
// random numbers, collectives, and indices that the host did not upload in the same call. Run then
// launches what the function had queued before, as if it had been called without a graph, and
// throws the function's exception. Cached memory cannot go back to the driver within the function:
// if the GPU's memory is too full for it, the function gets the Error "out of memory".
#ifndef APOGEE_TENSOR_CUDA_CUDA_GRAPH_CALL_H_
#define APOGEE_TENSOR_CUDA_CUDA_GRAPH_CALL_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "apogee/core/device_context.h"

namespace apogee {

class CudaGraphCall {
 public:
  // Throws Error for a context that is not a GPU's.
  explicit CudaGraphCall(const ContextPtr& context);
  // Waits for the GPU.
  ~CudaGraphCall();
  CudaGraphCall(const CudaGraphCall&) = delete;
  CudaGraphCall& operator=(const CudaGraphCall&) = delete;

  // Does not wait if the work is of the same kind as in the last call.
  void Run(const std::function<void()>& fn);

  // Calls so far that made a graph, and calls that updated one.
  int64_t num_made() const;
  int64_t num_updated() const;
  // Pinned copies of uploads of earlier calls. A call that finds the GPU idle frees them; at 65 of
  // them a call waits for the GPU first.
  int64_t num_old_uploads() const;

  // Whether the context is within a Run.
  static bool IsUnderWay(const DeviceContext& context);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace apogee

#endif  // APOGEE_TENSOR_CUDA_CUDA_GRAPH_CALL_H_
