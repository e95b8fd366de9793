// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/saved_tensor.h"

#include <utility>

namespace apogee::autograd {
namespace {
thread_local const PackHook* current_hook = nullptr;
}

const PackHook* CurrentPackHook() { return current_hook; }

SavedTensorHookGuard::SavedTensorHookGuard(PackHook hook)
    : hook_(std::move(hook)), previous_(current_hook) {
  current_hook = &hook_;
}
SavedTensorHookGuard::~SavedTensorHookGuard() { current_hook = previous_; }

SavedTensor::SavedTensor(const Tensor& tensor) {
  if (!tensor.defined()) return;
  if (current_hook != nullptr) {
    packed_ = (*current_hook)(tensor.Detach());
  } else {
    tensor_ = tensor.Detach();
  }
}

Tensor SavedTensor::Take(const BackwardContext& context) {
  APOGEE_CHECK(!dropped_,
               "backward: the saved tensors of this graph were freed when backward ran over it "
               "before; call the first backward with retain_graph = true");
  if (packed_ != nullptr) {
    Tensor tensor = packed_->Unpack();
    if (!context.keep_saved) Reset();
    return tensor;
  }
  if (context.keep_saved) return tensor_;
  dropped_ = tensor_.defined();
  return std::exchange(tensor_, Tensor());
}

void SavedTensor::Reset() {
  dropped_ = dropped_ || defined();
  tensor_ = Tensor();
  packed_ = nullptr;
}

}  // namespace apogee::autograd
