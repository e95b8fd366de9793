// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/module.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/nn/module_pass.h"
#include "apogee/nn/quantized/quantized_weight.h"

namespace apogee::nn {

std::string Module::Called() const {
  const std::string name = full_name();
  return name.empty() ? "the root module" : "module \"" + name + "\"";
}

Module::~Module() {
  for (const auto& [name, child] : children_) {
    if (child->parent_ == this) child->parent_ = nullptr;
    --child->registrations_;
  }
}

Tensor Module::Forward(const Tensor&) {
  Throw(Called(), " takes named tensors: call it with {{\"name\", tensor}, ..}");
}

NamedTensors Module::ForwardNamed(const NamedTensors&) {
  Throw(Called(),
        " takes one tensor, not named ones; to take several, override "
        "ForwardNamed");
}

Tensor Module::operator()(const Tensor& x) {
  if (training_ && parent_ == nullptr) BeginBatch(x);
  pre_forward_.Run(*this, x);
  auto pass = NewPass();
  const Tensor input = input_ ? input_(x) : x;
  const Tensor y = Compute(pass != nullptr ? ModulePass::Enter(pass, input) : input);
  if (pass == nullptr) pass = NewPass();  // forward may have added hooks
  if (pass != nullptr) ModulePass::Leave(pass, y, autograd::NeedsGrad({input}));
  post_forward_.Run(*this);
  return y;
}

NamedTensors Module::operator()(const NamedTensors& inputs) {
  APOGEE_CHECK(!inputs.empty(), Called(), ": called without inputs");
  for (const auto& [name, input] : inputs) {
    APOGEE_CHECK(input.defined(), Called(), ": input \"", name, "\" is undefined");
  }
  if (takes_documents()) return RunWithDocuments(inputs);
  APOGEE_CHECK(forward_ == nullptr, Called(),
               ": the plugin runs this module itself (a pipeline, sequence parallelism or a layer "
               "that a plan cuts), and can only do so with one tensor; call it with one tensor, or "
               "choose a plugin without these");
  const auto placed = std::ranges::find_if(
      inputs, [](const auto& input) { return SamplePlaceOf(input.second).has_value(); });
  const auto& [first_name, first] = placed != inputs.end() ? *placed : *inputs.begin();
  if (training_ && parent_ == nullptr) BeginBatch(first);
  pre_forward_.Run(*this, first);
  auto pass = NewPass();
  bool in_graph = false;
  NamedTensors entered = inputs;
  for (auto& [name, input] : entered) {
    in_graph = in_graph || autograd::NeedsGrad({input});
    if (pass != nullptr) input = ModulePass::Enter(pass, input);
  }
  // A wrapper may call it again in backward (Recompute), when this call is over.
  const auto results = std::make_shared<NamedTensors>();
  const auto forward = [this, entered, first = first_name,
                        kept = std::weak_ptr(results)](const Tensor& x) {
    NamedTensors in = entered;
    in[first] = x;
    NamedTensors out = ForwardNamed(in);
    for (const auto& [name, output] : out) {
      APOGEE_CHECK(output.defined(), Called(), ": ForwardNamed returned \"", name, "\" undefined");
    }
    APOGEE_CHECK(!out.empty(), Called(), ": ForwardNamed returned nothing");
    const Tensor y = out.begin()->second;
    if (const auto now = kept.lock()) *now = std::move(out);
    return y;
  };
  const Tensor x = entered[first_name];
  const Tensor y = wrapper_ ? wrapper_(x, forward) : forward(x);
  NamedTensors outputs = std::move(*results);
  APOGEE_CHECK(!outputs.empty(), Called(),
               ": the wrapper of its forward did not call it, so there are no named outputs");
  outputs.begin()->second = y;
  if (pass == nullptr) pass = NewPass();
  for (const auto& [name, output] : outputs) {
    if (pass != nullptr) ModulePass::Leave(pass, output, in_graph);
  }
  post_forward_.Run(*this);
  return outputs;
}

// Null if no hook needs it.
std::shared_ptr<ModulePass> Module::NewPass() {
  if (pre_backward_.empty() && post_backward_.empty()) return nullptr;
  return std::make_shared<ModulePass>(*this, pre_backward_, post_backward_);
}

Tensor Module::Residual(const Tensor& x) const {
  if (!residual_dtype_ || x.dtype() == *residual_dtype_) return x;
  return autograd::Cast(x, *residual_dtype_);
}

void Module::BeginBatch(const Tensor& inputs) {
  const std::optional<SamplePlace> place = SamplePlaceOf(inputs);
  generator_->BeginBatch(place ? &*place : nullptr);
}

Tensor Module::Compute(const Tensor& input) {
  if (wrapper_ == nullptr) return forward_ ? forward_(input) : Forward(input);
  if (forward_ != nullptr) return wrapper_(input, forward_);
  return wrapper_(input, [this](const Tensor& x) { return Forward(x); });
}

void Module::ReplaceForward(ForwardFunction forward, ForwardFunction input) {
  APOGEE_CHECK(forward_ == nullptr,
               "module: its forward has been replaced before; a model can be boosted once");
  forward_ = std::move(forward);
  input_ = std::move(input);
}

void Module::WrapForward(ForwardWrapper wrapper) {
  APOGEE_CHECK(wrapper_ == nullptr,
               "module: its forward has been wrapped before; a model can be boosted once");
  wrapper_ = std::move(wrapper);
}

ParameterPtr Module::RegisterParameter(const std::string& name, const Shape& shape,
                                       const Init& init) {
  return Declare(parameters_, name, shape, init);
}

ParameterPtr Module::RegisterBuffer(const std::string& name, const Shape& shape, const Init& init) {
  ParameterPtr buffer = Declare(buffers_, name, shape, init);
  buffer->set_requires_grad(false);
  return buffer;
}

ParameterPtr Module::Declare(std::vector<Declared>& list, const std::string& name,
                             const Shape& shape, const Init& init) {
  CheckOpen(&list == &buffers_ ? "buffer" : "parameter", name);
  for (const auto* declared_before : {&parameters_, &buffers_}) {
    for (const Declared& declared : *declared_before) {
      APOGEE_CHECK(declared.name != name, Called(), " has a ",
                   declared_before == &buffers_ ? "buffer" : "parameter", " \"", name,
                   "\" already; give this one another name");
    }
  }
  const std::string prefix = full_name();
  auto parameter = std::make_shared<Parameter>(prefix.empty() ? name : prefix + "." + name, shape);
  list.push_back({name, parameter, init});
  return parameter;
}

void Module::RegisterModule(const std::string& name, const std::shared_ptr<Module>& child) {
  CheckOpen("child", name);
  APOGEE_CHECK(child != nullptr, "module: child \"", name, "\" is null");
  for (const auto& [other, module] : children_) {
    APOGEE_CHECK(other != name, Called(), " has a child \"", name,
                 "\" already; give this one another name");
  }
  const std::vector<Module*> below = child->Modules();
  APOGEE_CHECK(std::ranges::find(below, this) == below.end(), Called(), " cannot have the child \"",
               name, "\", which contains it");
  APOGEE_CHECK(!child->closed_, "module: child \"", name,
               "\" has been boosted; make the module around it before boost");
  children_.emplace_back(name, child);
  ++child->registrations_;
  if (child->parent_ == nullptr) {
    child->parent_ = this;
    child->name_ = name;
    child->Rename();
  }
  for (Module* module : below) module->generator_ = generator_;
}

// Sets the full names of this module's parameters and of those below it. Skips children that
// another module registered first.
void Module::Rename() {
  const std::string prefix = full_name();
  for (const auto* list : {&parameters_, &buffers_}) {
    for (const Declared& declared : *list) {
      const std::string name = prefix.empty() ? declared.name : prefix + "." + declared.name;
      declared.parameter->set_name(name);
      declared.read()->set_name(name);
    }
  }
  for (const auto& [name, child] : children_) {
    if (child->parent_ == this) child->Rename();
  }
}

std::optional<std::string> Module::NameBelow(const Module* root) const {
  if (this == root || parent_ == nullptr) {
    return this == root || root == nullptr ? std::optional<std::string>("") : std::nullopt;
  }
  std::optional<std::string> name = parent_->NameBelow(root);
  if (name) *name += (name->empty() ? "" : ".") + name_;
  return name;
}

std::string Module::full_name() const { return *NameBelow(nullptr); }

void Module::CheckOpen(const std::string& what, const std::string& name) const {
  APOGEE_CHECK(!closed_, Called(), " gets the ", what, " \"", name,
               "\" after boost: neither the optimizer nor the plugin would know of it; register "
               "it before the optimizer is made");
}

void Module::CheckNames() const {
  std::map<std::string, const Module*> owners;
  ForEach([&](const Module& module) {
    for (const auto* list : {&module.parameters_, &module.buffers_}) {
      for (const Declared& declared : *list) {
        const std::string& name = declared.parameter->name();
        const auto [known, is_new] = owners.emplace(name, &module);
        APOGEE_CHECK(is_new, "module: two parameters have the full name \"", name, "\", one of ",
                     known->second->Called(), " and one of ", module.Called(),
                     "; register one of them under another name");
      }
    }
  });
}

void Module::CloseTree() {
  for (Module* module : Modules()) module->closed_ = true;
}

bool Module::IsNew(Met& met) const { return registrations_ <= 1 || met.insert(this).second; }

void Module::ForEach(const std::function<void(const Module&)>& fn) const {
  Met met;
  ForEach(fn, met);
}

void Module::ForEach(const std::function<void(const Module&)>& fn, Met& met) const {
  fn(*this);
  for (const auto& [name, child] : children_) {
    if (child->IsNew(met)) child->ForEach(fn, met);
  }
}

std::vector<ParameterPtr> Module::Parameters() const {
  std::vector<ParameterPtr> result;
  ForEach([&](const Module& module) {
    for (const Declared& declared : module.parameters_) result.push_back(declared.parameter);
  });
  return result;
}

std::vector<ParameterPtr> Module::Buffers() const {
  std::vector<ParameterPtr> result;
  ForEach([&](const Module& module) {
    for (const Declared& declared : module.buffers_) result.push_back(declared.parameter);
  });
  return result;
}

ParameterPtr Module::FindParameter(const std::string& name) const {
  for (const ParameterPtr& parameter : Parameters()) {
    if (parameter->name() == name) return parameter;
  }
  return nullptr;
}

std::vector<Module*> Module::Modules() {
  std::vector<Module*> result;
  ForEach([&](const Module& module) { result.push_back(const_cast<Module*>(&module)); });
  return result;
}

std::vector<std::pair<std::string, Module*>> Module::NamedModules() {
  std::vector<std::pair<std::string, Module*>> result;
  Met met;
  AddNamed("", *this, met, result);
  return result;
}

void Module::AddNamed(const std::string& name, const Module& root, Met& met,
                      std::vector<std::pair<std::string, Module*>>& result) {
  result.emplace_back(name, this);
  for (const auto& [child_name, child] : children_) {
    if (!child->IsNew(met)) continue;
    std::string below = name.empty() ? child_name : name + "." + child_name;
    if (child->registrations_ > 1) below = child->NameBelow(&root).value_or(below);
    child->AddNamed(below, root, met, result);
  }
}

int64_t Module::num_parameters() const {
  int64_t total = 0;
  ForEach([&](const Module& module) {
    for (const Declared& declared : module.parameters_) total += declared.read()->shape().numel();
  });
  return total;
}

void Module::set_batch_sum(const RankSum& sum) {
  for (Module* module : Modules()) module->batch_sum_ = sum;
}

void Module::set_progress(const Progress& progress) {
  for (Module* module : Modules()) module->progress_ = progress;
}

void Module::Train(bool training) {
  for (Module* module : Modules()) module->training_ = training;
}

}  // namespace apogee::nn
