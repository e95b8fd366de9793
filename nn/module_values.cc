// SPDX-License-Identifier: Apache-2.0

// Module: the values of its parameters: initialised, converted, quantized.
#include <algorithm>
#include <utility>

#include "apogee/core/text/text.h"
#include "apogee/nn/init.h"
#include "apogee/nn/module.h"
#include "apogee/nn/quantized/quantized_weight.h"

namespace apogee::nn {

void Module::ReplaceInit(const std::string& pattern, const InitOfShape& init) {
  bool any = false;
  for (Module* module : Modules()) {
    for (Declared& declared : module->parameters_) {
      const Parameter& parameter = *declared.read();
      if (!GlobMatches(pattern, parameter.name())) continue;
      APOGEE_CHECK(!parameter.has_value(), "SetInit: parameter \"", parameter.name(),
                   "\" has a value already; call SetInit before Initialize");
      declared.init = init(parameter.shape());
      any = true;
    }
  }
  APOGEE_CHECK(any, "SetInit: no parameter of ", Called(), " matches \"", pattern, "\"");
}

void Module::SetInit(const std::string& pattern, const Init& init) {
  ReplaceInit(pattern, [&](const Shape&) { return init; });
}

void Module::SetInit(const std::string& pattern, const std::string& name) {
  ReplaceInit(pattern, [&](const Shape& shape) { return Init::Named(name, shape); });
}

void Module::GiveValues(const ContextPtr& context, const InitOptions& options, bool lazily) {
  APOGEE_CHECK(IsFloat(options.dtype), "Initialize: parameters need a floating dtype, got ",
               DTypeName(options.dtype));
  CheckNames();
  ForEach([&](const Module& module) {
    for (const Declared& declared : module.parameters_) {
      Parameter& parameter = *declared.read();
      if (parameter.has_value()) continue;
      // The key uses the name at this moment: a lazy value stays the same if this module gets a
      // parent later.
      const PhiloxKey key = MakeKey(options.seed, parameter.name());
      const auto make = [shape = parameter.shape(), init = declared.init, key,
                         dtype = options.dtype,
                         context] { return FirstValue(shape, init, key, dtype, context); };
      if (declared.quantized != nullptr) {
        declared.quantized->SetValue({options.dtype, context, make}, lazily);
      } else if (lazily) {
        parameter.set_lazy_value({options.dtype, context, make});
      } else {
        parameter.set_value(make());
      }
    }
    for (const Declared& declared : module.buffers_) {
      Parameter& buffer = *declared.parameter;
      if (buffer.has_value()) continue;
      buffer.set_value(FirstValue(buffer.shape(), declared.init,
                                  MakeKey(options.seed, buffer.name()), ComputeDType(options.dtype),
                                  context));
    }
  });
  *generator_ = Generator(options.seed);
}

void Module::Initialize(const ContextPtr& context, const InitOptions& options) {
  GiveValues(context, options, /*lazily=*/false);
}

void Module::InitializeLazily(const ContextPtr& context, const InitOptions& options) {
  GiveValues(context, options, /*lazily=*/true);
}

void Module::To(DType dtype) {
  APOGEE_CHECK(IsFloat(dtype), "To: parameters need a floating dtype, got ", DTypeName(dtype));
  for (const auto& weight : QuantizedWeights()) weight->set_dtype(dtype);
  for (const ParameterPtr& parameter : Parameters()) {
    if (!IsFloat(parameter->dtype())) continue;
    parameter->zero_grad();
    parameter->set_value(parameter->data().To(dtype, MemoryCategory::kParameter));
  }
  for (const ParameterPtr& buffer : Buffers()) {
    buffer->set_value(buffer->data().To(ComputeDType(dtype), MemoryCategory::kParameter));
  }
}

const ParameterPtr& Module::Declared::read() const {
  return quantized != nullptr ? quantized->weight() : parameter;
}

std::vector<std::shared_ptr<QuantizedWeight>> Module::QuantizedWeights() const {
  std::vector<std::shared_ptr<QuantizedWeight>> result;
  ForEach([&](const Module& module) {
    for (const Declared& declared : module.parameters_) {
      if (declared.quantized != nullptr) result.push_back(declared.quantized);
    }
  });
  return result;
}

bool Module::Declares(const Parameter& parameter) const {
  return std::ranges::any_of(
      parameters_, [&](const Declared& declared) { return declared.read().get() == &parameter; });
}

QuantizedWeight& Module::QuantizeParameter(const ParameterPtr& parameter,
                                           const QuantizeOptions& options) {
  APOGEE_CHECK(!closed_, Called(), ": \"", parameter->name(),
               "\" cannot be quantized after boost; do it before the optimizer is made");
  const auto declared = std::ranges::find(parameters_, parameter, &Declared::parameter);
  APOGEE_CHECK(declared != parameters_.end(), Called(), ": \"", parameter->name(),
               "\" is quantized already, or another module's; call its owner");
  declared->quantized = std::make_shared<QuantizedWeight>(parameter, options);
  declared->parameter = declared->quantized->stored();
  return *declared->quantized;
}

void Module::RestoreQuantized() {
  for (Module* module : Modules()) {
    APOGEE_CHECK(
        !module->closed_, Called(),
        " has been boosted, so its ranks hold the quantized weights; restore before boost");
    for (Declared& declared : module->parameters_) {
      if (declared.quantized == nullptr) continue;
      declared.quantized->Restore();
      declared.parameter = declared.quantized->weight();
      declared.quantized = nullptr;
    }
  }
}

}  // namespace apogee::nn
