// SPDX-License-Identifier: Apache-2.0

// CudaGraph: captures a function's work on a GPU once, and then starts all of it with one launch,
// as often as you like.
//
//   Tensor loss;
//   CudaGraph graph = CudaGraph::Capture(context, {tokens, targets}, [&](const auto& in) {
//     loss = criterion(model(in[0]), in[1]).Detach();       // is captured, not run
//   });
//   graph.Launch({tokens, targets});                        // runs it on these values
//   double value = loss.Item();                             // valid until the next launch
//
// A launch gives, bit for bit, the result of calling the function on tensors with these values.
// This holds if the function depends only on its inputs and on tensors that keep their shape and
// address; numbers that the host computes are those of the capture, and so are uploads from the
// host. The function's results are in memory of the capture, which the graph keeps until it is
// destroyed and counts in the context's ledger. Tensors that existed before the capture and that
// the function reads must outlive the graph.
//
// Run the function once before the capture, so that everything that a first run sets up (plans of
// cuBLASLt, tables) exists. One thread uses the context while it captures.
//
// In a capture, these throw Error and name the call:
//   - reading values on the host (ToVector, Item, ToHost, Synchronize)
//   - launching a graph, and capturing another one
//   - dropout and other random numbers
//   - collectives
//   - indices that are neither an input's nor uploaded within the capture
// Then nothing has run, tensors that the function made have undefined values, and the context is as
// before. Capture also throws Error for a context that is not a GPU's. Destroying a graph within a
// capture makes that capture fail. Side effects without a tensor (a barrier, a counter of the
// function's own) are not noticed: they happen once, in the capture.
//
// The host checks indices of embeddings and targets of cross entropy before every launch, and
// throws the function's own Error before anything runs. The number of targets that are not ignored
// is a constant of the graph: see Takes().
#ifndef APOGEE_TENSOR_CUDA_CUDA_GRAPH_H_
#define APOGEE_TENSOR_CUDA_CUDA_GRAPH_H_

#include <functional>
#include <memory>
#include <vector>

#include "apogee/tensor/tensor.h"

namespace apogee {

class CudaGraph {
 public:
  using Tensors = std::vector<Tensor>;

  // Calls fn once, with tensors that belong to the graph and have the inputs' values. The inputs
  // may be on the host or in `context`.
  static CudaGraph Capture(const ContextPtr& context, const Tensors& inputs,
                           const std::function<void(const Tensors&)>& fn);
  // Waits for the GPU.
  ~CudaGraph();
  CudaGraph(CudaGraph&& other) noexcept;
  CudaGraph& operator=(CudaGraph&& other) noexcept;

  // Whether `values` have the inputs' shapes and dtypes, and as many targets that are not ignored
  // as in the capture.
  bool Takes(const Tensors& values) const;
  // Copies `values` into the inputs and queues the work. Values on the host cost no wait; indices
  // on the GPU are fetched to be checked, which waits for them. Throws Error if Takes is false or
  // an index is wrong; then nothing has changed.
  void Launch(const Tensors& values) const;

 private:
  struct Impl;
  explicit CudaGraph(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace apogee

#endif  // APOGEE_TENSOR_CUDA_CUDA_GRAPH_H_
