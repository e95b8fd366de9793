// SPDX-License-Identifier: Apache-2.0

// Replays recorded gradient clipping. Clipping by norm is replayed twice: with its own function,
// and as part of an optimizer step. That step is plain SGD with lr 1 from zero weights, so the new
// weights are the negative clipped gradients.
#include "apogee/optim/grad_clip.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/verify/cases.h"

namespace apogee::verify {
namespace {

using autograd::Parameter;
using autograd::ParameterPtr;
using internal::Concat;

optim::NormKind KindOf(const Json& norm_type) {
  if (norm_type.is_string() && norm_type.get<std::string>() == "inf") return optim::NormKind::kMax;
  APOGEE_CHECK(norm_type.is_number(), "norm_type ", norm_type.dump(), " is not known");
  const double p = norm_type.get<double>();
  APOGEE_CHECK(p == 1 || p == 2, "norm_type ", p, " is not offered: 1, 2 and inf are");
  return p == 1 ? optim::NormKind::kL1 : optim::NormKind::kL2;
}

// Names of the tensors recorded under "<sub>/grad/<name>/before".
std::vector<std::string> NamesOf(const GoldenCase& golden, const std::string& sub) {
  const std::string prefix = sub + "/grad/";
  const std::string suffix = "/before";
  std::vector<std::string> names;
  for (const auto& [entry, unused] : golden.file().entries()) {
    if (entry.starts_with(prefix) && entry.ends_with(suffix)) {
      names.push_back(entry.substr(prefix.size(), entry.size() - prefix.size() - suffix.size()));
    }
  }
  return names;
}

class ClipReplay {
 public:
  ClipReplay(const GoldenCase& golden, DType dtype, std::string sub)
      : golden_(golden), dtype_(dtype), sub_(std::move(sub)), names_(NamesOf(golden, sub_)) {
    const Json tolerance = golden.required("tolerance");
    tolerances_ = {tolerance.at("atol").get<double>(), tolerance.at("rtol").get<double>()};
    APOGEE_CHECK(!names_.empty(), "\"", sub_, "\" records no gradients");
  }

  void Run(const Json& settings, Comparison& comparison) const {
    const auto limit = settings.at("max_norm").get<double>();
    const Json& norm_type = settings.at("norm_type");
    std::vector<ParameterPtr> params = MakeParams();
    if (norm_type.is_string() && norm_type.get<std::string>() == "value") {
      optim::ClipGradValue(params, limit);
      CompareGrads(params, comparison);
      return;
    }
    const optim::NormKind kind = KindOf(norm_type);
    CompareNorm(optim::ClipGradNorm(params, {.max_norm = limit, .norm_kind = kind}), comparison);
    CompareGrads(params, comparison);

    params = MakeParams();
    optim::Sgd sgd(params, {.lr = 1});
    sgd.set_step_options({.max_norm = limit, .norm_kind = kind});
    sgd.step();
    CompareNorm(sgd.last_step().grad_norm, comparison);
    for (const ParameterPtr& p : params) {
      std::vector<double> clipped = p->data().ToVector<double>();
      for (double& x : clipped) x = -x;
      Compare(p->name(), clipped, comparison);
    }
  }

 private:
  std::vector<ParameterPtr> MakeParams() const {
    std::vector<ParameterPtr> params;
    for (const std::string& name : names_) {
      Tensor grad = golden_.Load(Concat(sub_, "/grad/", name, "/before"), dtype_);
      params.push_back(std::make_shared<Parameter>(
          name, Tensor::Zeros(grad.shape(), dtype_, golden_.context())));
      params.back()->set_grad(std::move(grad));
    }
    return params;
  }

  void CompareNorm(double norm, Comparison& comparison) const {
    const std::string where = Concat("total norm of ", sub_);
    comparison.Number(norm, golden_.Values(sub_ + "/total_norm").at(0), tolerances_, where);
    if (dtype_ != DType::kF64) return;
    // The recorded gradients are f32, so their norm in float64 is exact up to rounding.
    const std::string exact = Concat("ref64/", sub_, "/total_norm");
    if (golden_.contains(exact))
      comparison.Number(norm, golden_.Values(exact).at(0), {0, 1e-12}, where);
  }

  void CompareGrads(const std::vector<ParameterPtr>& params, Comparison& comparison) const {
    for (const ParameterPtr& p : params)
      Compare(p->name(), p->grad().ToVector<double>(), comparison);
  }

  void Compare(const std::string& name, const std::vector<double>& values,
               Comparison& comparison) const {
    comparison.Elements(values, golden_.Values(Concat(sub_, "/grad/", name, "/after")), tolerances_,
                        Concat("grad ", name, " of ", sub_));
  }

  const GoldenCase& golden_;
  DType dtype_;
  std::string sub_;
  std::vector<std::string> names_;
  Tolerances tolerances_;
};

}  // namespace

Comparison ReplayGradClip(const GoldenCase& golden, DType dtype) {
  Comparison comparison;
  const Json hyper = golden.required("hyper");
  for (const auto& [sub, settings] : hyper.items()) {
    ClipReplay(golden, dtype, sub).Run(settings, comparison);
  }
  return comparison;
}

}  // namespace apogee::verify
