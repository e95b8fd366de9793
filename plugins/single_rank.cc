#include "apogee/plugins/single_rank.h"

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
  return optimizer;
}

void SingleRankPlugin::Backward(const Tensor& loss, optim::Optimizer&) { autograd::Backward(loss); }

std::shared_ptr<void> SingleRankPlugin::NoSync() { return nullptr; }

}  // namespace apogee
