// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/saved_tensor.h"

#include <utility>

namespace apogee::autograd {
namespace {
thread_local const PackHook* current_hook = nullptr;

// A tensor that is made again from the source of its storage.
class MadeAgain : public PackedTensor {
 public:
  MadeAgain(std::shared_ptr<const StorageOrigin> origin, const Shape& shape)
      : make_(origin->make), source_(origin->source), shape_(shape) {}
  Tensor Unpack() override {
    const BackwardContext keep{.keep_saved = true};
    return make_(source_.Take(keep)).View(shape_);
  }

 private:
  std::function<Tensor(const Tensor&)> make_;
  SavedTensor source_;
  Shape shape_;
};

// Of a tensor with all elements of its storage, in their order; else null.
std::shared_ptr<const StorageOrigin> OriginOf(const Tensor& tensor) {
  if (tensor.is_sealed() || tensor.storage()->origin() == nullptr) return nullptr;
  const bool all = tensor.is_contiguous() && tensor.bytes() == tensor.storage()->bytes();
  return all ? tensor.storage()->origin() : nullptr;
}

}  // namespace

void SetOrigin(const Tensor& y, const Tensor& source,
               std::function<Tensor(const Tensor& source)> make) {
  y.storage()->set_origin(
      std::make_shared<const StorageOrigin>(StorageOrigin{source.Detach(), std::move(make)}));
}

const PackHook* CurrentPackHook() { return current_hook; }

SavedTensorHookGuard::SavedTensorHookGuard(PackHook hook)
    : hook_(std::move(hook)), previous_(current_hook) {
  current_hook = &hook_;
}
SavedTensorHookGuard::~SavedTensorHookGuard() { current_hook = previous_; }

SavedTensor::SavedTensor(const Tensor& tensor) {
  if (!tensor.defined()) return;
  if (auto origin = OriginOf(tensor); origin != nullptr) {
    packed_ = std::make_shared<MadeAgain>(std::move(origin), tensor.shape());
  } else if (current_hook != nullptr) {
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
