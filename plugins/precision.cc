// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/precision.h"

#include <utility>
#include <vector>

#include "apogee/core/text/text.h"
#include "apogee/nn/quantized/quantized_weight.h"

namespace apogee {
namespace {

// The names of the modules that have parameters, the first twenty.
std::string NamesOf(nn::Module& model) {
  std::string names;
  int count = 0;
  for (const auto& [name, module] : model.NamedModules()) {
    if (name.empty() || module->Parameters().empty()) continue;
    if (++count > 20) return names + ", ...";
    names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

}  // namespace

void CheckShardable(const std::string& plugin, const optim::Optimizer& optimizer) {
  APOGEE_CHECK(optimizer.traits().shards, plugin, ": optimizer ", optimizer.name(),
               " does not say that its update is exact on shards of a parameter "
               "(OptimizerTraits::shards); use the ddp plugin, or declare its statistics of "
               "whole tensors and set the trait");
}

void CheckTakesMeans(const std::string& plugin, const optim::Optimizer& optimizer) {
  APOGEE_CHECK(
      optimizer.traits().local_gradients == nullptr, plugin, ": optimizer ", optimizer.name(),
      " averages momenta of whole parameters in 1-bit messages and needs each rank's whole "
      "gradients, so states and gradients cannot be sharded. Use the ddp plugin, or "
      "hybrid_parallel with stage 0");
}

void CheckTrainingOptions(const TrainingOptions& training, std::string& errors) {
  if (!(training.max_norm >= 0)) {  // also of NaN
    errors += "\n  max_norm must be 0 (off) or positive, got " + std::to_string(training.max_norm);
  }
  if (training.bucket_bytes < 1) {
    errors += "\n  bucket_bytes must be positive, got " + std::to_string(training.bucket_bytes);
  }
}

PrecisionPolicy::PrecisionPolicy(const TrainingOptions& training, nn::Module& model)
    : PrecisionPolicy(DTypeOf(training.precision)) {
  const bool rounds = NeedsMasters(dtype_);
  if (rounds && !training.f32_residual) residual_ = dtype_;
  std::string problems;
  for (const std::string& pattern : training.keep_f32) {
    bool matched = false;
    for (const auto& [name, module] : model.NamedModules()) {
      if (!GlobMatches(pattern, name)) continue;
      for (const autograd::ParameterPtr& parameter : module->Parameters()) {
        matched = true;
        if (rounds) kept_.insert(parameter.get());
      }
    }
    if (!matched) problems += "\n  \"" + pattern + "\"";
  }
  APOGEE_CHECK(problems.empty(),
               "boost: keep_f32 has patterns that match no module with parameters (a tied "
               "parameter belongs to the module that registers it):",
               problems, "\nThe model's modules are ", NamesOf(model));
}

void SetComputeDTypes(const PrecisionPolicy& policy, nn::Module& model) {
  for (nn::Module* module : model.Modules()) module->set_residual_dtype(policy.residual());
  for (const auto& quantized : model.QuantizedWeights()) {
    quantized->set_dtype(policy.ValueOf(*quantized->stored()));
  }
}

void CheckPrecision(const PrecisionPolicy& policy, optim::Optimizer& optimizer) {
  for (const optim::ParamView& view : optimizer.views()) {
    const DType dtype = policy.Of(*view.parameter());
    const bool same = view.dtype() == dtype;
    APOGEE_CHECK(same || (!view.has_grad() && view.states().empty()), "boost: parameter \"",
                 view.name(), "\" already has ", view.has_grad() ? "a gradient" : "optimizer state",
                 ", so its precision cannot change from ", DTypeName(view.dtype()), " to ",
                 DTypeName(dtype),
                 "; call boost before the first backward and before loading optimizer state");
  }
}

void ConvertParameter(DType dtype, autograd::Parameter& parameter) {
  if (parameter.dtype() != dtype) {
    parameter.zero_grad();
    parameter.set_value(parameter.data().To(dtype, MemoryCategory::kParameter));
  }
  // Sums over micro-batches in 16 bits would lose small gradients.
  if (!NeedsMasters(dtype)) return;
  const Tensor grad = parameter.grad();
  parameter.zero_grad();
  parameter.set_grad_dtype(DType::kF32);
  if (grad.defined()) parameter.set_grad(grad.To(DType::kF32, MemoryCategory::kGradient));
}

void ApplyPrecision(const PrecisionPolicy& policy, nn::Module& model, optim::Optimizer& optimizer) {
  CheckPrecision(policy, optimizer);
  // Masters keep the bits that rounding to the working dtype drops, so they are taken before the
  // cast.
  std::vector<std::pair<optim::ParamView*, Tensor>> masters;
  for (optim::ParamView& view : optimizer.views()) {
    const bool rounds = NeedsMasters(policy.Of(*view.parameter()));
    if (rounds && view.trainable() && view.dtype() == DType::kF32) {
      masters.emplace_back(&view, view.value().Clone(MemoryCategory::kOptimizerState));
    }
  }
  for (const autograd::ParameterPtr& parameter : model.Parameters()) {
    ConvertParameter(policy.Of(*parameter), *parameter);
  }
  SetComputeDTypes(policy, model);
  for (auto& [view, master] : masters) view->set_master(std::move(master));
}

}  // namespace apogee
