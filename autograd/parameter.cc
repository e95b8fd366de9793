// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/parameter.h"

#include <algorithm>
#include <utility>

#include "apogee/tensor/ops/elementwise.h"

namespace apogee::autograd {
namespace {

// A value in memory. Activation memory becomes parameter memory.
class WholeStorage : public ParameterStorage {
 public:
  explicit WholeStorage(const Tensor& value) : value_(value.Detach()) {
    if (value_.storage()->category() == MemoryCategory::kActivation) {
      value_.storage()->set_category(MemoryCategory::kParameter);
    }
  }
  DType dtype() const override { return value_.dtype(); }
  ContextPtr context() const override { return value_.context(); }
  Tensor Read() override { return value_; }
  Tensor ReadLocal() override { return value_; }

 private:
  Tensor value_;
};

// A tensor that has only a part of the elements that the model declared; other ranks have the rest.
class PartStorage : public WholeStorage {
 public:
  using WholeStorage::WholeStorage;
  bool is_whole() const override { return false; }
};

// If `make` throws, Read throws the same, and the next one tries again.
class LazyStorage : public ParameterStorage {
 public:
  // `name` and `shape`: of the parameter. Throws Error without a context or a function.
  LazyStorage(std::string name, const Shape& shape, LazyValue lazy)
      : name_(std::move(name)), shape_(shape), lazy_(std::move(lazy)) {
    APOGEE_CHECK(lazy_.make != nullptr && lazy_.context != nullptr, "parameter \"", name_,
                 "\": a lazy value needs a context, and a function that makes it");
  }
  DType dtype() const override { return lazy_.dtype; }
  ContextPtr context() const override { return lazy_.context; }
  Tensor ReadLocal() override { return Read(); }
  bool is_made() const override { return value_.defined(); }
  Tensor Read() override {
    if (value_.defined()) return value_;
    const Tensor made = lazy_.make();
    APOGEE_CHECK(
        made.defined() && made.shape() == shape_ && made.dtype() == lazy_.dtype &&
            made.context() == lazy_.context,
        "parameter \"", name_,
        "\": its lazy value is not of the shape or dtype, or not in the context, that it was "
        "said to have");
    value_ = WholeStorage(made).ReadLocal();
    lazy_.make = nullptr;  // the objects it captured may not live longer
    return value_;
  }

 private:
  std::string name_;
  Shape shape_;
  LazyValue lazy_;
  Tensor value_;  // undefined until it is made
};

}  // namespace

Parameter::Parameter(std::string name, const Shape& shape)
    : name_(std::move(name)), shape_(shape) {}

Parameter::Parameter(std::string name, Tensor value, bool requires_grad)
    : name_(std::move(name)), shape_(value.shape()), requires_grad_(requires_grad) {
  grad_dtype_ = value.dtype();
  set_value(value);
}

Parameter::~Parameter() {
  if (leaf_ != nullptr) leaf_->Forget();
}

DType Parameter::dtype() const { return Storage().dtype(); }
ContextPtr Parameter::context() const { return Storage().context(); }
Tensor Parameter::data() const { return Storage().ReadLocal(); }
bool Parameter::is_lazy() const { return has_value() && !storage_->is_made(); }
bool Parameter::is_part() const { return has_value() && !storage_->is_whole(); }
bool Parameter::is_local() const { return !has_value() || storage_->is_local(); }
bool Parameter::is_here() const { return !has_value() || storage_->is_here(); }

ParameterStorage& Parameter::Storage() const {
  APOGEE_CHECK(storage_ != nullptr, "parameter \"", name_,
               "\" has no value yet; call Initialize on the model or load a checkpoint first. If "
               "that has been done, the parameter belongs to no module of the model's tree: "
               "Register the module that declares it (a tied weight's owner)");
  return *storage_;
}

Tensor Parameter::value() const {
  Tensor value = Storage().Read();
  if (!requires_grad_) return value;
  if (meta_ == nullptr) {
    // The const_cast is safe: no Parameter is a const object.
    if (leaf_ == nullptr) leaf_ = std::make_shared<LeafNode>(const_cast<Parameter*>(this));
    meta_ = std::make_shared<GraphMeta>();
    meta_->edge = {leaf_, 0};
    meta_->grad_dtype = grad_dtype_;
  }
  value.set_autograd_meta(meta_);
  return value;
}

void Parameter::set_storage(std::shared_ptr<ParameterStorage> storage) {
  const bool default_grad_dtype = !has_value() || grad_dtype_ == dtype();
  storage_ = std::move(storage);
  if (!default_grad_dtype) return;
  grad_dtype_ = dtype();
  meta_ = nullptr;
}

void Parameter::set_storage(std::shared_ptr<ParameterStorage> storage, const Shape& shape) {
  grad_ = Tensor();
  shape_ = shape;
  set_storage(std::move(storage));
}

void Parameter::set_value(const Tensor& value) {
  APOGEE_CHECK(value.defined() && value.shape() == shape_, "parameter \"", name_, "\": shape ",
               shape_, " cannot take a value of shape ", value.shape());
  CheckReplaceable();
  if (is_part()) return set_storage(std::make_shared<PartStorage>(value));
  set_storage(std::make_shared<WholeStorage>(value));
}

void Parameter::set_lazy_value(LazyValue lazy) {
  CheckReplaceable();
  APOGEE_CHECK(!is_part(), "parameter \"", name_,
               "\" is only a part of what the model declared; a lazy value would be all of it");
  set_storage(std::make_shared<LazyStorage>(name_, shape_, std::move(lazy)));
}

void Parameter::set_part(const Tensor& part) {
  APOGEE_CHECK(part.defined(), "parameter \"", name_, "\": its part has no value");
  CheckReplaceable();
  grad_ = Tensor();
  shape_ = part.shape();
  set_storage(std::make_shared<PartStorage>(part));
}

void Parameter::CheckReplaceable() const {
  const std::string problem = has_value() ? storage_->ReplaceProblem() : "";
  APOGEE_CHECK(problem.empty(), "parameter \"", name_, "\" ", problem);
}

void Parameter::set_requires_grad(bool requires_grad) { requires_grad_ = requires_grad; }

void Parameter::set_grad_dtype(DType dtype) {
  APOGEE_CHECK(
      !has_grad(), "parameter \"", name_,
      "\": the gradient dtype cannot change while there is a gradient; call zero_grad first");
  grad_dtype_ = dtype;
  meta_ = nullptr;
}

void Parameter::set_grad(Tensor grad) {
  APOGEE_CHECK(!grad.defined() || grad.numel() == shape_.numel(), "parameter \"", name_,
               "\": shape ", shape_, " cannot take a gradient of shape ", grad.shape());
  grad_ = grad.defined() ? grad.Detach() : Tensor();
}

void Parameter::zero_grad(bool set_to_none) {
  const std::shared_ptr<const GradPlace> place = grad_place();
  if (place != nullptr && place->on_zero_grad) place->on_zero_grad(set_to_none);
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

void Parameter::set_grad_sink(const std::shared_ptr<GradSink>& sink) {
  APOGEE_CHECK(grad_sink_.expired(), "parameter \"", name_,
               "\": a plugin takes its gradients already; a model can be boosted once");
  grad_sink_ = sink;
}

void Parameter::RunGradHooks() {
  hooks_.Run(*this);
  if (const std::shared_ptr<GradSink> sink = grad_sink_.lock()) sink->OnGradient(*this);
}

std::vector<Tensor> LeafNode::Backward(std::vector<Tensor> grads, const BackwardContext&) {
  if (parameter_ == nullptr || !grads[0].defined()) return {};
  parameter_->AccumulateGrad(std::move(grads[0]));
  parameter_->RunGradHooks();
  return {};
}

}  // namespace apogee::autograd
