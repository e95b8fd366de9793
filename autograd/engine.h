// SPDX-License-Identifier: Apache-2.0

// Backward: walks the graph from a loss to the parameters, without recursion, in a fixed order.
//
//   Tensor loss = criterion(model(x), y);
//   Backward(loss);                                   // gradients are added to the parameters'
//   Backward(loss, {.retain_graph = true});           // keep the graph for another pass
//
// A node runs once all contributions to its outputs' gradients have arrived; among ready nodes
// parameters go first (their hooks run at once), then the node farthest from the leaves, ties in
// order of discovery. Counts live in the call, never in the graph, so a graph may be walked again
// and a failed backward leaves nothing behind in it. Saved tensors are freed as soon as they are
// used.
#ifndef APOGEE_AUTOGRAD_ENGINE_H_
#define APOGEE_AUTOGRAD_ENGINE_H_

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "apogee/autograd/node.h"

namespace apogee::autograd {

// The weight halves that a backward with `deferred` set left for later. Gradients of parameters
// with an outstanding half are delivered, and their hooks run, when Run() completes them.
class DeferredWeightGrads {
 public:
  DeferredWeightGrads();
  ~DeferredWeightGrads();
  DeferredWeightGrads(DeferredWeightGrads&&) noexcept;
  DeferredWeightGrads& operator=(DeferredWeightGrads&&) noexcept;

  // Computes what was left, in the order backward met it. Nothing is left afterwards.
  void Run();
  bool empty() const;

 private:
  friend class BackwardPass;
  struct State;
  std::unique_ptr<State> state_;
};

struct BackwardOptions {
  // Gradient of the root, in its shape and dtype; default: 1 for a root of one element.
  Tensor grad = {};
  bool retain_graph = false;
  // Not null: weight gradients of layers that can split their backward are left to
  // `deferred->Run()`.
  DeferredWeightGrads* deferred = nullptr;
};

// Throws Error when the root is not in a graph or needs a gradient that was not given.
void Backward(const Tensor& root, const BackwardOptions& options = {});
// Several roots at once: grads[i] belongs to roots[i].
void Backward(std::span<const Tensor> roots, std::span<const Tensor> grads,
              const BackwardOptions& options = {});

// From within a hook: `callback` runs at the end of the backward call under way on this thread,
// after all gradients have been delivered. Throws Error when no backward is under way.
void QueueCallback(std::function<void()> callback);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_ENGINE_H_
