#include "apogee/nn/module.h"

#include <utility>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/tensor/ops/nn.h"

namespace apogee::nn {
namespace {

void RunAll(const std::vector<Module::Hook>& hooks, Module& module) {
  for (const Module::Hook& hook : hooks) hook(module);
}

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

}  // namespace

Tensor Module::operator()(const Tensor& x) {
  for (const InputHook& hook : pre_forward_) hook(*this, x);
  Tensor input = input_ ? input_(x) : x;
  const bool input_in_graph = autograd::NeedsGrad({input});
  if (!post_backward_.empty() && input_in_graph) {
    // An identity node whose turn comes when the gradient of the input is complete.
    input = autograd::View(autograd::Contiguous(input), input.shape());
    autograd::MetaOf(input)->edge.node->AddPreHook([module = Watched(this)] {
      CheckAlive(module);
      RunAll(module->post_backward_, *module);
    });
  }
  Tensor y = Compute(input);
  if (autograd::NeedsGrad({y}) && (!pre_backward_.empty() || !post_backward_.empty())) {
    autograd::MetaOf(y)->edge.node->AddPreHook([module = Watched(this), input_in_graph] {
      CheckAlive(module);
      RunAll(module->pre_backward_, *module);
      if (!input_in_graph && !module->post_backward_.empty()) {
        autograd::QueueCallback([module] { RunAll(module->post_backward_, *module); });
      }
    });
  }
  RunAll(post_forward_, *this);
  return y;
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
  for (const Declared& declared : parameters_) {
    APOGEE_CHECK(declared.parameter->name() != name, "module: parameter \"", name,
                 "\" is registered twice");
  }
  auto parameter = std::make_shared<Parameter>(name, shape);
  parameters_.push_back({parameter, init});
  return parameter;
}

void Module::RegisterModule(const std::string& name, const std::shared_ptr<Module>& child) {
  APOGEE_CHECK(child != nullptr, "module: child \"", name, "\" is null");
  for (const auto& [other, module] : children_) {
    APOGEE_CHECK(other != name, "module: child \"", name, "\" is registered twice");
  }
  child->ForEach([&](const Module& module) {
    const_cast<Module&>(module).generator_ = generator_;
    for (const Declared& declared : module.parameters_) {
      declared.parameter->set_name(name + "." + declared.parameter->name());
    }
  });
  children_.emplace_back(name, child);
}

void Module::ForEach(const std::function<void(const Module&)>& fn) const {
  fn(*this);
  for (const auto& [name, child] : children_) child->ForEach(fn);
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
  std::vector<std::pair<std::string, Module*>> result = {{"", this}};
  for (const auto& [name, child] : children_) {
    for (const auto& [below, module] : child->NamedModules()) {
      result.emplace_back(below.empty() ? name : name + "." + below, module);
    }
  }
  return result;
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
  ForEach([&](const Module& module) {
    for (const auto& [parameter, init] : module.parameters_) {
      if (parameter->has_value()) continue;
      // The name of now: a value that is made after this module got a parent is the same.
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
