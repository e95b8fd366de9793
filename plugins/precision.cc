// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/precision.h"

#include <utility>
#include <vector>

namespace apogee {

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

void CheckPrecision(DType dtype, optim::Optimizer& optimizer) {
  for (const optim::ParamView& view : optimizer.views()) {
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

void ApplyPrecision(DType dtype, nn::Module& model, optim::Optimizer& optimizer) {
  CheckPrecision(dtype, optimizer);
  // Masters keep the bits that rounding to the working dtype drops, so they are taken before the
  // cast.
  std::vector<std::pair<optim::ParamView*, Tensor>> masters;
  for (optim::ParamView& view : optimizer.views()) {
    if (NeedsMasters(dtype) && view.trainable() && view.dtype() == DType::kF32) {
      masters.emplace_back(&view, view.value().Clone(MemoryCategory::kOptimizerState));
    }
  }
  for (const autograd::ParameterPtr& parameter : model.Parameters()) {
    ConvertParameter(dtype, *parameter);
  }
  for (auto& [view, master] : masters) view->set_master(std::move(master));
}

}  // namespace apogee
