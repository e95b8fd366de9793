// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/parameter.h"

#include <algorithm>
#include <utility>

#include "apogee/tensor/ops/elementwise.h"

namespace apogee::autograd {

Parameter::Parameter(std::string name, const Shape& shape)
    : name_(std::move(name)), shape_(shape) {}

Parameter::Parameter(std::string name, Tensor value, bool requires_grad)
    : name_(std::move(name)), shape_(value.shape()), requires_grad_(requires_grad) {
  grad_dtype_ = value.dtype();
  set_value(std::move(value));
}

Parameter::~Parameter() {
  if (leaf_ != nullptr) leaf_->Forget();
}

const Tensor& Parameter::value() const {
  // A read makes a lazy value. The const_cast is safe: no Parameter is a const object.
  if (is_lazy()) const_cast<Parameter*>(this)->MakeLazyValue();
  if (is_released()) {
    const std::function<void()> fetch = fetch_;  // set_value drops the member
    fetch();
    APOGEE_CHECK(!is_released(), "parameter \"", name_,
                 "\": its value was released, and `fetch` did not set it again");
  }
  APOGEE_CHECK(value_.defined(), "parameter \"", name_,
               "\" has no value yet; call Initialize on the model or load a checkpoint first. If "
               "that has been done, the parameter belongs to no module of the model's tree: "
               "Register the module that declares it (a tied weight's owner)");
  if (before_read_) std::exchange(before_read_, nullptr)();
  return value_;
}

void Parameter::set_value(Tensor value) {
  APOGEE_CHECK(value.defined() && value.shape() == shape_, "parameter \"", name_, "\": shape ",
               shape_, " cannot take a value of shape ", value.shape());
  APOGEE_CHECK(!is_elsewhere_, "parameter \"", name_,
               "\" is not on this rank and takes no value here");
  const bool first = !has_value();
  const bool default_grad_dtype = first || grad_dtype_ == dtype();
  value_ = value.Detach();
  lazy_ = {};
  rest_ = Tensor();
  fetch_ = nullptr;
  if (default_grad_dtype) grad_dtype_ = value_.dtype();
  if (value_.storage()->category() == MemoryCategory::kActivation) {
    value_.storage()->set_category(MemoryCategory::kParameter);
  }
  MakeLeaf();
}

void Parameter::set_lazy_value(LazyValue lazy) {
  APOGEE_CHECK(lazy.make != nullptr && lazy.context != nullptr, "parameter \"", name_,
               "\": a lazy value needs a context, and a function that makes it");
  APOGEE_CHECK(!is_part(), "parameter \"", name_,
               "\" has been sharded by a plugin; a lazy value would be the whole parameter");
  if (!has_value() || grad_dtype_ == dtype()) grad_dtype_ = lazy.dtype;
  lazy_ = std::move(lazy);
  value_ = Tensor();
  before_read_ = nullptr;
}

void Parameter::MakeLazyValue() {
  const Tensor made = lazy_.make();
  APOGEE_CHECK(made.defined() && made.dtype() == lazy_.dtype && made.context() == lazy_.context,
               "parameter \"", name_,
               "\": its lazy value is not of the dtype or in the context "
               "that it was said to have");
  set_value(made);
}

void Parameter::set_part(Tensor part) {
  APOGEE_CHECK(part.defined(), "parameter \"", name_, "\": its part has no value");
  grad_ = Tensor();
  shape_ = part.shape();
  is_part_ = true;
  set_value(std::move(part));
}

void Parameter::Release(Tensor rest, std::function<void()> fetch) {
  APOGEE_CHECK(has_value() && rest.defined() && fetch != nullptr, "parameter \"", name_,
               "\": Release needs a value, the elements to keep, and a function that fetches it");
  if (grad_dtype_ == dtype()) grad_dtype_ = rest.dtype();
  rest_ = rest.Detach();
  lazy_ = {};
  fetch_ = std::move(fetch);
  value_ = Tensor();
  before_read_ = nullptr;
}

void Parameter::GiveAway(Tensor none, const std::string& where) {
  APOGEE_CHECK(none.defined() && none.numel() == 0, "parameter \"", name_,
               "\": GiveAway needs an empty tensor");
  grad_ = Tensor();
  is_elsewhere_ = true;
  Release(std::move(none),
          [this, where] { Throw("parameter \"", name_, "\" is not on this rank: ", where); });
}

void Parameter::set_requires_grad(bool requires_grad) {
  requires_grad_ = requires_grad;
  if (value_.defined()) MakeLeaf();
}

void Parameter::set_grad_dtype(DType dtype) {
  APOGEE_CHECK(
      !has_grad(), "parameter \"", name_,
      "\": the gradient dtype cannot change while there is a gradient; call zero_grad first");
  grad_dtype_ = dtype;
  if (value_.defined()) MakeLeaf();
}

void Parameter::MakeLeaf() {
  if (!requires_grad_) {
    value_.set_autograd_meta(nullptr);
    return;
  }
  if (leaf_ == nullptr) leaf_ = std::make_shared<LeafNode>(this);
  auto meta = std::make_shared<GraphMeta>();
  meta->edge = {leaf_, 0};
  meta->grad_dtype = grad_dtype_;
  value_.set_autograd_meta(std::move(meta));
}

void Parameter::set_grad(Tensor grad) {
  APOGEE_CHECK(!grad.defined() || grad.numel() == shape_.numel(), "parameter \"", name_,
               "\": shape ", shape_, " cannot take a gradient of shape ", grad.shape());
  grad_ = grad.defined() ? grad.Detach() : Tensor();
}

void Parameter::zero_grad(bool set_to_none) {
  if (on_zero_grad_) on_zero_grad_(set_to_none);
  if (set_to_none) {
    grad_ = Tensor();
  } else if (grad_.defined()) {
    grad_.Fill(0);
  }
}

void Parameter::AccumulateGrad(Tensor grad) {
  APOGEE_CHECK(grad.shape() == shape_, "parameter \"", name_, "\": shape ", shape_,
               " got a gradient of shape ", grad.shape());
  if (grad_.defined()) {
    ops::Accumulate(grad_, grad);
    return;
  }
  if (grad.dtype() != grad_dtype_) {
    grad = grad.To(grad_dtype_, MemoryCategory::kGradient);
  } else if (!grad.is_sole_owner() || !grad.is_contiguous() || grad.offset() != 0 ||
             grad.bytes() != grad.storage()->bytes()) {
    grad = grad.Clone(MemoryCategory::kGradient);
  }
  grad.storage()->set_category(MemoryCategory::kGradient);
  grad_ = std::move(grad);
}

int Parameter::AddGradHook(Hook hook) {
  hooks_.emplace_back(next_hook_, std::move(hook));
  return next_hook_++;
}

void Parameter::RemoveGradHook(int handle) {
  std::erase_if(hooks_, [handle](const auto& entry) { return entry.first == handle; });
}

std::shared_ptr<void> Parameter::SetFinalGradHook(Hook hook) {
  APOGEE_CHECK(final_hook_ == nullptr, "parameter \"", name_,
               "\": a plugin takes its gradients already; a model can be boosted once");
  final_hook_ = std::move(hook);
  return std::shared_ptr<void>(nullptr, [this](void*) { final_hook_ = nullptr; });
}

void Parameter::RunGradHooks() {
  // By index: a hook may add hooks.
  for (size_t i = 0; i < hooks_.size(); ++i) hooks_[i].second(*this);
  if (final_hook_ != nullptr) final_hook_(*this);
}

std::vector<Tensor> LeafNode::Backward(std::vector<Tensor> grads, const BackwardContext&) {
  if (parameter_ == nullptr || !grads[0].defined()) return {};
  parameter_->AccumulateGrad(std::move(grads[0]));
  parameter_->RunGradHooks();
  return {};
}

}  // namespace apogee::autograd
