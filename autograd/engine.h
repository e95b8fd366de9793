// SPDX-License-Identifier: Apache-2.0

// Backward: walks the graph from a loss to the parameters, without recursion, in a fixed order.
//
//   Tensor loss = criterion(model(x), y);
//   Backward(loss);                                   // adds to the parameters' gradients
//   Backward(loss, {.retain_graph = true});           // keeps the graph for another pass
//
// A node runs once all contributions to its outputs' gradients have arrived. Among ready nodes,
// parameters go first, so that their hooks run at once; then the node farthest from the leaves;
// ties are broken by the order of discovery. So the order is a function of the graph. The counts
// belong to the call, not to the graph: a graph may be walked again, and a failed backward leaves
// nothing behind in it. Saved tensors are freed as soon as they are used, unless retain_graph.
#ifndef APOGEE_AUTOGRAD_ENGINE_H_
#define APOGEE_AUTOGRAD_ENGINE_H_

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "apogee/autograd/node.h"

namespace apogee::autograd {

// The weight gradients that a backward with BackwardOptions::deferred left for later. Run()
// computes them, adds them to the parameters and runs the parameters' hooks.
class DeferredWeightGrads {
 public:
  DeferredWeightGrads();
  ~DeferredWeightGrads();
  DeferredWeightGrads(DeferredWeightGrads&&) noexcept;
  DeferredWeightGrads& operator=(DeferredWeightGrads&&) noexcept;

  // Computes everything that was left, in the order in which backward met it.
  void Run();
  // Whether nothing is left.
  bool empty() const;

 private:
  friend class BackwardPass;
  struct State;
  std::unique_ptr<State> state_;
};

struct BackwardOptions {
  // The gradient of the root, in its shape and dtype. Default: 1, for a root of one element.
  Tensor grad = {};
  // Keep the saved tensors, so that backward may run over the graph again.
  bool retain_graph = false;
  // If not null, weight gradients of layers that can split their backward are left to
  // `deferred->Run()`. It must be empty. Not with retain_graph.
  DeferredWeightGrads* deferred = nullptr;
};

// Throws Error if the root is not in a graph, or if it has several elements and options.grad is
// undefined. The rank's thread calls it.
void Backward(const Tensor& root, const BackwardOptions& options = {});
// From several roots at once: grads[i] is the gradient of roots[i]; options.grad is not used.
void Backward(std::span<const Tensor> roots, std::span<const Tensor> grads,
              const BackwardOptions& options = {});

// Call it from a hook: `callback` runs at the end of this thread's current backward call, after all
// gradients have been delivered. Throws Error if no backward is running on this thread.
void QueueCallback(std::function<void()> callback);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_ENGINE_H_
