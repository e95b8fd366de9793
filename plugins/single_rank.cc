#include "apogee/plugins/single_rank.h"

#include <utility>
#include <vector>

#include "apogee/core/text.h"

namespace apogee {
namespace {

DType ParsePrecision(const std::string& precision, std::string& errors) {
  if (precision == "f32" || precision == "fp32") return DType::kF32;
  if (precision == "bf16") return DType::kBF16;
  if (precision == "f64") return DType::kF64;
  errors += "\n  " + UnknownName("precision", precision, {"f32", "bf16", "f64"});
  return DType::kF32;
}

}  // namespace

SingleRankPlugin::SingleRankPlugin(const SingleRankOptions& options) : options_(options) {
  std::string errors;
  dtype_ = ParsePrecision(options.precision, errors);
  if (!(options.max_norm >= 0)) {
    errors += "\n  max_norm must be 0 (off) or positive, got " + std::to_string(options.max_norm);
  }
  APOGEE_CHECK(errors.empty(), "single_rank plugin: invalid options:", errors);
}

optim::Optimizer& SingleRankPlugin::Configure(nn::Module& model, optim::Optimizer& optimizer) {
  for (const optim::ParamView& view : optimizer.views()) {
    const bool same = view.value().dtype() == dtype_;
    APOGEE_CHECK(same || (!view.has_grad() && view.states().empty()), "single_rank plugin: parameter \"",
                 view.name(), "\" already has ", view.has_grad() ? "a gradient" : "optimizer state",
                 ", so its precision cannot change to ", options_.precision,
                 "; call boost before the first backward and before loading optimizer state");
  }
  // The masters keep what rounding to the working dtype drops, so they are taken before the cast.
  std::vector<std::pair<optim::ParamView*, Tensor>> masters;
  for (optim::ParamView& view : optimizer.views()) {
    if (dtype_ == DType::kBF16 && view.trainable() && view.value().dtype() == DType::kF32) {
      masters.emplace_back(&view, view.value().Clone(MemoryCategory::kOptimizerState));
    }
  }
  for (const autograd::ParameterPtr& parameter : model.Parameters()) {
    if (parameter->data().dtype() != dtype_) {
      parameter->zero_grad();
      parameter->set_value(parameter->data().To(dtype_, MemoryCategory::kParameter));
    }
    // Sums over micro-batches in bf16 would lose what small gradients add.
    if (dtype_ == DType::kBF16 && !parameter->has_grad()) parameter->set_grad_dtype(DType::kF32);
  }
  for (auto& [view, master] : masters) view->set_master(std::move(master));
  optim::StepOptions step_options = optimizer.step_options();
  if (options_.max_norm > 0) step_options.max_norm = options_.max_norm;
  optimizer.set_step_options(step_options);
  return optimizer;
}

void SingleRankPlugin::Backward(const Tensor& loss, optim::Optimizer&) { autograd::Backward(loss); }

std::shared_ptr<void> SingleRankPlugin::NoSync() { return nullptr; }

}  // namespace apogee
