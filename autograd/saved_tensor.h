// SPDX-License-Identifier: Apache-2.0

// A tensor that a node keeps for backward, with hooks to keep it in another form (recompute,
// offload).
//
//   SavedTensor x_;                       // in the node
//   x_ = SavedTensor(x);                  // at record time
//   Tensor x = x_.Take(context);          // in Backward: moves it out unless the graph is walked
//   again
#ifndef APOGEE_AUTOGRAD_SAVED_TENSOR_H_
#define APOGEE_AUTOGRAD_SAVED_TENSOR_H_

#include <functional>
#include <memory>

#include "apogee/autograd/node.h"

namespace apogee::autograd {

// What a pack hook returns: the tensor in its packed form. Destroyed when the node drops it.
class PackedTensor {
 public:
  virtual ~PackedTensor() = default;
  // The tensor again, bit for bit. May be called more than once (retain_graph).
  virtual Tensor Unpack() = 0;
};

using PackHook = std::function<std::shared_ptr<PackedTensor>(const Tensor&)>;

// The hook in force on this thread; nullptr without one.
const PackHook* CurrentPackHook();

// Within the scope, tensors saved on this thread go through `hook`. Scopes nest; the innermost
// counts.
class SavedTensorHookGuard {
 public:
  explicit SavedTensorHookGuard(PackHook hook);
  ~SavedTensorHookGuard();
  SavedTensorHookGuard(const SavedTensorHookGuard&) = delete;
  SavedTensorHookGuard& operator=(const SavedTensorHookGuard&) = delete;

 private:
  PackHook hook_;
  const PackHook* previous_;
};

class SavedTensor {
 public:
  SavedTensor() = default;
  // Saves the elements without their graph, so that a node never owns itself.
  explicit SavedTensor(const Tensor& tensor);

  // The tensor; forgets it unless `context.keep_saved`. Throws Error once it has been dropped.
  Tensor Take(const BackwardContext& context);
  bool defined() const { return tensor_.defined() || packed_ != nullptr; }
  void Reset();

 private:
  Tensor tensor_;
  std::shared_ptr<PackedTensor> packed_;
  bool dropped_ = false;
};

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_SAVED_TENSOR_H_
