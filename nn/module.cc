// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/module.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/tensor/ops/nn.h"

namespace apogee::nn {
namespace {

void CheckAlive(const Watched<Module>& module) {
  APOGEE_CHECK(
      !module.is_gone(),
      "backward: a module that took part in the forward has been destroyed since; keep the "
      "model until backward has run");
}

Tensor FirstValue(const Shape& shape, const Init& init, const PhiloxKey& key, DType dtype,
                  const ContextPtr& context) {
  const Tensor value = Tensor::Empty(shape, dtype, context, MemoryCategory::kParameter);
  switch (init.kind) {
    case Init::Kind::kConstant:
      value.Fill(init.a);
      break;
    case Init::Kind::kNormal:
      ops::FillNormal(value, init.a, init.b, key);
      break;
    case Init::Kind::kUniform:
      ops::FillUniform(value, init.a, init.b, key);
      break;
  }
  return value;
}

// The module's name for messages; "" is the root.
std::string Called(const std::string& full_name) {
  return full_name.empty() ? "the root module" : "module \"" + full_name + "\"";
}

}  // namespace

Module::~Module() {
  for (const auto& [name, child] : children_) {
    if (child->parent_ == this) child->parent_ = nullptr;
    --child->registrations_;
  }
}

Tensor Module::operator()(const Tensor& x) {
  if (training_ && parent_ == nullptr) BeginBatch(x);
  pre_forward_.Run(*this, x);
  Tensor input = input_ ? input_(x) : x;
  const bool input_in_graph = autograd::NeedsGrad({input});
  if (!post_backward_.empty() && input_in_graph) {
    // An identity node; backward reaches it when the gradient of the input is complete.
    input = autograd::View(autograd::Contiguous(input), input.shape());
    autograd::MetaOf(input)->edge.node->AddPreHook([module = Watched(this)] {
      CheckAlive(module);
      module->post_backward_.Run(*module);
    });
  }
  Tensor y = Compute(input);
  if (autograd::NeedsGrad({y}) && (!pre_backward_.empty() || !post_backward_.empty())) {
    autograd::MetaOf(y)->edge.node->AddPreHook([module = Watched(this), input_in_graph] {
      CheckAlive(module);
      module->pre_backward_.Run(*module);
      if (!input_in_graph && !module->post_backward_.empty()) {
        autograd::QueueCallback([module] { module->post_backward_.Run(*module); });
      }
    });
  }
  post_forward_.Run(*this);
  return y;
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
  CheckOpen("parameter", name);
  for (const Declared& declared : parameters_) {
    APOGEE_CHECK(declared.name != name, Called(full_name()), " has a parameter \"", name,
                 "\" already; give this one another name");
  }
  const std::string prefix = full_name();
  auto parameter = std::make_shared<Parameter>(prefix.empty() ? name : prefix + "." + name, shape);
  parameters_.push_back({name, parameter, init});
  return parameter;
}

void Module::RegisterModule(const std::string& name, const std::shared_ptr<Module>& child) {
  CheckOpen("child", name);
  APOGEE_CHECK(child != nullptr, "module: child \"", name, "\" is null");
  for (const auto& [other, module] : children_) {
    APOGEE_CHECK(other != name, Called(full_name()), " has a child \"", name,
                 "\" already; give this one another name");
  }
  const std::vector<Module*> below = child->Modules();
  APOGEE_CHECK(std::ranges::find(below, this) == below.end(), Called(full_name()),
               " cannot have the child \"", name, "\", which contains it");
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
  for (const Declared& declared : parameters_) {
    declared.parameter->set_name(prefix.empty() ? declared.name : prefix + "." + declared.name);
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
  APOGEE_CHECK(!closed_, Called(full_name()), " gets the ", what, " \"", name,
               "\" after boost: neither the optimizer nor the plugin would know of it; register "
               "it before the optimizer is made");
}

void Module::CheckNames() const {
  std::map<std::string, const Module*> owners;
  ForEach([&](const Module& module) {
    for (const Declared& declared : module.parameters_) {
      const std::string& name = declared.parameter->name();
      const auto [known, is_new] = owners.emplace(name, &module);
      APOGEE_CHECK(is_new, "module: two parameters have the full name \"", name, "\", one of ",
                   Called(known->second->full_name()), " and one of ", Called(module.full_name()),
                   "; register one of them under another name");
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
  for (const ParameterPtr& parameter : Parameters()) total += parameter->shape().numel();
  return total;
}

void Module::GiveValues(const ContextPtr& context, const InitOptions& options,
                        const GiveValue& give) {
  APOGEE_CHECK(IsFloat(options.dtype), "Initialize: parameters need a floating dtype, got ",
               DTypeName(options.dtype));
  CheckNames();
  ForEach([&](const Module& module) {
    for (const auto& [name, parameter, init] : module.parameters_) {
      if (parameter->has_value()) continue;
      // The key uses the name at this moment: a lazy value stays the same if this module gets a
      // parent later.
      const PhiloxKey key = MakeKey(options.seed, parameter->name());
      give(*parameter, [shape = parameter->shape(), init, key, dtype = options.dtype, context] {
        return FirstValue(shape, init, key, dtype, context);
      });
    }
  });
  *generator_ = Generator(options.seed);
}

void Module::Initialize(const ContextPtr& context, const InitOptions& options) {
  GiveValues(context, options, [](Parameter& parameter, const std::function<Tensor()>& make) {
    parameter.set_value(make());
  });
}

void Module::InitializeLazily(const ContextPtr& context, const InitOptions& options) {
  GiveValues(context, options, [&](Parameter& parameter, std::function<Tensor()> make) {
    parameter.set_lazy_value({options.dtype, context, std::move(make)});
  });
}

void Module::To(DType dtype) {
  APOGEE_CHECK(IsFloat(dtype), "To: parameters need a floating dtype, got ", DTypeName(dtype));
  for (const ParameterPtr& parameter : Parameters()) {
    parameter->zero_grad();
    parameter->set_value(parameter->data().To(dtype, MemoryCategory::kParameter));
  }
}

void Module::Train(bool training) {
  for (Module* module : Modules()) module->training_ = training;
}

}  // namespace apogee::nn
