// SPDX-License-Identifier: Apache-2.0

// A tensor that a node keeps for backward, with hooks to keep it in another form (recompute,
// offload).
//
//   SavedTensor x_;                       // a member of the node
//   x_ = SavedTensor(x);                  // when the function is recorded
//   Tensor x = x_.Take(context);          // in Backward: moves it out, unless context.keep_saved
//
// A tensor whose storage has an origin (StorageOrigin) is not kept: its source is, and goes through
// the hooks.
#ifndef APOGEE_AUTOGRAD_SAVED_TENSOR_H_
#define APOGEE_AUTOGRAD_SAVED_TENSOR_H_

#include <functional>
#include <memory>

#include "apogee/autograd/node.h"

namespace apogee::autograd {

// A saved tensor in the form that a pack hook gave it. Destroyed when the node drops it.
class PackedTensor {
 public:
  virtual ~PackedTensor() = default;
  // Returns the tensor again, bit for bit. May be called more than once (retain_graph).
  virtual Tensor Unpack() = 0;
};

using PackHook = std::function<std::shared_ptr<PackedTensor>(const Tensor&)>;

// This thread's current hook, or nullptr.
const PackHook* CurrentPackHook();

// Within the scope, tensors saved on this thread go through `hook`. If scopes nest, only the
// innermost hook runs.
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
  // Saves the elements, but not the tensor's graph: otherwise a node could own itself.
  explicit SavedTensor(const Tensor& tensor);

  // Returns the tensor, and drops it unless context.keep_saved. Throws Error if it was dropped.
  Tensor Take(const BackwardContext& context);
  bool defined() const { return tensor_.defined() || packed_ != nullptr; }
  void Reset();

 private:
  Tensor tensor_;
  std::shared_ptr<PackedTensor> packed_;
  bool dropped_ = false;
};

// From now on functions that save `y`, which has all of its storage, keep `source` in its place
// (StorageOrigin). `make` computes the same bits from it in backward; it may run several times.
void SetOrigin(const Tensor& y, const Tensor& source,
               std::function<Tensor(const Tensor& source)> make);

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_SAVED_TENSOR_H_
