// SPDX-License-Identifier: Apache-2.0

// CudaGraph: work on a GPU that is captured once and then started as a whole, again and again, at
// the cost of one launch.
//
//   Tensor loss;
//   CudaGraph graph = CudaGraph::Capture(context, {tokens, targets}, [&](const auto& in) {
//     loss = criterion(model(in[0]), in[1]).Detach();       // is queued, not run
//   });
//   graph.Launch({tokens, targets});                        // runs it on these values
//   loss.Item();                                            // until the next launch
//
// A launch computes, bit for bit, what calling the function on tensors of these values would, as
// long as the function is one of its inputs and of memory that stays where it is: the same shapes,
// the same numbers of the host, the same tensors. What it makes, it writes to the memory of the
// capture; the graph keeps that until it is destroyed, and counts it in the context's ledger. What
// was there before and is read must outlive the graph. Uploads from the host are captured with
// their values.
//
// Run the function once before: what a first run sets up (cuBLASLt's plans, tables) is then there.
// A context is used by one thread while it captures.
//
// Throws Error in a capture, naming what was called: what reads values on the host (ToVector, Item,
// ToHost, Synchronize), a launch of a graph, dropout and other random numbers, collectives, indices
// that are neither an input's nor uploaded within the capture. Nothing has run then, tensors that
// the function made hold anything, and the context is as before. A context that is not a GPU's, and
// a capture within a capture, are refused too. Destroying a
// graph within a capture makes that capture fail. What has no tensor (a barrier, a counter of the
// function's own) is not noticed: it happens once, in the capture.
//
// Indices of embeddings and targets of cross entropy, which the host checks, are checked at every
// launch: the same Error as the function's own, before anything runs. How many targets are ignored
// is a part of the graph: Takes().
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

  // Calls fn once, with tensors of the graph's own that have the inputs' values. The inputs may be
  // on the host or in `context`.
  static CudaGraph Capture(const ContextPtr& context, const Tensors& inputs,
                           const std::function<void(const Tensors&)>& fn);
  // Waits for the GPU.
  ~CudaGraph();
  CudaGraph(CudaGraph&& other) noexcept;
  CudaGraph& operator=(CudaGraph&& other) noexcept;

  // Whether `values` have the shapes and dtypes of the inputs, and as many targets that count.
  bool Takes(const Tensors& values) const;
  // Copies `values` into the inputs and queues the work. Those on the host cost no wait; of those
  // on the GPU, indices are fetched to be checked. Throws Error where Takes says no, and for wrong
  // indices; nothing has changed then.
  void Launch(const Tensors& values) const;

 private:
  struct Impl;
  explicit CudaGraph(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace apogee

#endif  // APOGEE_TENSOR_CUDA_CUDA_GRAPH_H_
