// SPDX-License-Identifier: Apache-2.0

// Replays recorded optimizer trajectories: feeds the stored gradients, and compares the weights
// after each stored step, the whole update at the end, and the states.
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/optim/adam/scaled_adam.h"
#include "apogee/optim/registry.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/verify/averages.h"
#include "apogee/verify/bases.h"
#include "apogee/verify/cases.h"
#include "apogee/verify/galore_signs.h"
#include "apogee/verify/low_bit_states.h"
#include "apogee/verify/muon_values.h"
#include "apogee/verify/option_text.h"

namespace apogee::verify {
namespace {

using autograd::Parameter;
using autograd::ParameterPtr;
using internal::Concat;

// The optimizer for a recorded case, and recorded hyper-parameters that have another name in our
// options or are not options.
struct Family {
  std::string optimizer;                            // in our registry
  std::map<std::string, std::string> renamed;       // recorded name -> option name, "" for none
  Json (*translate)(const Json& values) = nullptr;  // before: to values that we have
};

Family FamilyOf(const GoldenCase& golden, const Json& hyper) {
  const std::string recorded = golden.text("optimizer");
  // Only Hugging Face's AdamW can turn bias correction off.
  if (recorded == "adamw" && hyper.contains("correct_bias")) return {"adamw_hf", {}};
  if (recorded.ends_with("adamw8bit")) return {recorded, {{"nbits", "bits"}}};
  if (recorded == "cpu_adam") {
    return {hyper.value("adamw_mode", true) ? "adamw" : "adam",
            {{"adamw_mode", ""}, {"div_scale", ""}, {"bias_correction", "correct_bias"}}};
  }
  if (recorded == "muon" || recorded == "normuon") {
    return {MuonPreset(recorded, hyper), {}, &MuonValues};
  }
  if (recorded == "schedule_free") {
    return {"schedule_free_" + golden.text("preset"), {{"eval_after_steps", ""}}};
  }
  if (recorded == "dion") {
    return {recorded, {{"betas", "adam_betas"}, {"epsilon", "eps"}, {"qr_method", ""}}};
  }
  if (recorded == "soap") return {recorded, {{"merge_dims", ""}}};
  // The recorded LAMB is ColossalAI's.
  if (recorded == "lamb") return {"lamb_colossal", {}};
  if (recorded == "scaled_adam") {
    return {golden.text("variant") == "old" ? "scaled_adam_icefall_2023" : "scaled_adam_icefall",
            {}};
  }
  if (recorded == "lomo" || recorded == "adalomo") {
    return {recorded, {{"clip_grad_norm", ""}, {"loss_scale", ""}, {"loss_scale_args", ""}}};
  }
  return {recorded, {}};
}

optim::OptionMap OptionsFrom(const Json& recorded, const Family& family) {
  optim::OptionMap options;
  const Json values = family.translate != nullptr ? family.translate(recorded) : recorded;
  for (const auto& [key, value] : values.items()) {
    if (key == "params" || key == "lr_factor_per_step" || key == "lr_per_step" || value.is_null())
      continue;
    const auto renamed = family.renamed.find(key);
    const std::string name = renamed == family.renamed.end() ? key : renamed->second;
    if (!name.empty()) options[name] = OptionText(value);
  }
  return options;
}

// Sets the option that selects the recorded one of several behaviours of a reference.
void SetVariant(const GoldenCase& golden, optim::OptionMap& options) {
  const std::string recorded = golden.text("optimizer");
  if (recorded.ends_with("8bit")) options["kernel"] = golden.text("variant");
  if (recorded.starts_with("galore_")) {
    options["project"] = options.contains("rank") ? "true" : "false";
    options["clamp_rank"] = "true";  // the references silently clamp a rank above min(m, n)
  }
}

class OptimizerReplay {
 public:
  OptimizerReplay(const GoldenCase& golden, DType dtype)
      : golden_(golden),
        dtype_(dtype),
        hyper_(golden.required("hyper")),
        tolerance_(golden.required("tolerance")) {
    for (const auto& [name, shape] : golden.Params()) {
      Tensor value = golden.Load(Concat("param/", name, "/init"), dtype);
      APOGEE_CHECK(value.shape() == shape, "parameter ", name, " is recorded with shape ",
                   value.shape(), ", the list of parameters says ", shape);
      params_.push_back(std::make_shared<Parameter>(name, value));
      init_.push_back(value.ToVector<double>());
    }
    MakeOptimizer();
  }

  Comparison Run() {
    const int64_t steps = golden_.steps();
    for (int64_t step = 1; step <= steps; ++step) {
      step_ = step;
      SetLearningRates(step);
      optimizer_->zero_grad();
      if (optimizer_->traits().fused_backward) {
        RunFused(step);
      } else {
        for (const ParameterPtr& parameter : params_) FeedGradient(*parameter, step);
      }
      optimizer_->step();
      InjectBases(golden_, *optimizer_, step);
      if (optimizer_->last_step().skip != Overflows(step)) {
        comparison_.Fail(
            Concat("step ", step, Overflows(step) ? " was not skipped" : " was skipped"));
      }
      CompareClipping(step);
      for (size_t i = 0; i < params_.size(); ++i) CompareWeights(i, step);
      for (const optim::ParamView& view : std::as_const(*optimizer_).views())
        CompareStates(view, step);
      for (int group = 0; group < optimizer_->num_groups(); ++group) {
        CompareGroupStates(golden_, *optimizer_, group, step, comparison_);
      }
      CompareAverages(golden_, *optimizer_, step, comparison_);
    }
    for (size_t i = 0; i < params_.size(); ++i) CompareUpdate(i, steps);
    return comparison_;
  }

 private:
  void MakeOptimizer() {
    const Family family = FamilyOf(golden_, hyper_);
    std::vector<optim::TextParamGroup> groups;
    Json recorded = golden_.json("groups");
    if (recorded.is_null()) {
      groups.push_back({params_, OptionsFrom(hyper_, family)});
    } else {
      for (const Json& group : recorded) {
        optim::OptionMap options = OptionsFrom(hyper_, family);
        for (const auto& [key, value] : OptionsFrom(group, family)) options[key] = value;
        std::vector<ParameterPtr> members;
        for (const Json& name : group.at("params"))
          members.push_back(Find(name.get<std::string>()));
        groups.push_back({std::move(members), std::move(options)});
      }
    }
    for (optim::TextParamGroup& group : groups) SetVariant(golden_, group.options);
    optimizer_ = ValueOrThrow(optim::MakeOptimizer(family.optimizer, std::move(groups)));
    if (optim::GaLoreProjector* galore = optimizer_->traits().projector) {
      galore->set_basis_hook([this](const optim::ParamView& view, const optim::NewBasis& basis) {
        AlignSigns(golden_, view.name(), step_, basis, comparison_);
      });
    }
    StartFromBases(golden_, *optimizer_);
    for (int g = 0; g < optimizer_->num_groups(); ++g) base_lrs_.push_back(optimizer_->lr(g));
    const double div_scale = hyper_.value("div_scale", -1.0);
    if (div_scale > 0) optimizer_->set_step_options({.loss_scale = div_scale});
  }

  bool Overflows(int64_t step) const {
    const Json steps = golden_.json("overflow_skipped_steps");
    return steps.is_array() && std::ranges::find(steps, Json(step)) != steps.end();
  }

  // Runs backward on a loss whose gradients are the recorded ones, under the recorded loss scale.
  // The gradients of steps that overflowed are not recorded; infinite gradients stand in for them.
  void RunFused(int64_t step) {
    optim::StepOptions options = optimizer_->step_options();
    const Json max_norm = hyper_.value("clip_grad_norm", Json());
    options.max_norm = max_norm.is_null() ? 0 : max_norm.get<double>();
    const std::string scale = Concat("aux/loss_scale/", step);
    options.loss_scale = golden_.contains(scale) ? golden_.Values(scale).at(0) : 1;
    optimizer_->set_step_options(options);
    Tensor loss;
    for (const ParameterPtr& parameter : params_) {
      const std::string entry = Concat("grad/", parameter->name(), "/", step);
      if (!golden_.contains(entry) && !Overflows(step)) continue;
      const Tensor grad =
          Overflows(step) ? Tensor::Full(parameter->shape(), dtype_, INFINITY, golden_.context())
                          : golden_.Load(entry, dtype_);
      const Tensor term = autograd::Sum(autograd::Mul(parameter->value(), grad));
      loss = loss.defined() ? autograd::Add(loss, term) : term;
    }
    if (loss.defined()) optimizer_->fused_backward(loss);
  }

  // Compares the norms and clip factors recorded with the weights.
  void CompareClipping(int64_t step) {
    const optim::StepReport& report = optimizer_->last_step();
    const auto number = [&](const char* name, double value) {
      const std::string entry = Concat("aux/", name, "/", step);
      if (golden_.contains(entry)) {
        comparison_.Number(value, golden_.Values(entry).at(0), {1e-7, 1e-5},
                           Concat(name, ", step ", step));
      }
    };
    if (optimizer_->name() == optim::ScaledAdamRule::kName) {
      const auto& scaled = static_cast<const optim::ScaledAdam&>(*optimizer_);
      const std::string entry = Concat("aux/clip_factor/", step);
      const std::vector<double> factors =
          golden_.contains(entry) ? golden_.Values(entry) : std::vector<double>();
      for (size_t g = 0; g < factors.size(); ++g) {
        const int group = static_cast<int>(g);
        comparison_.Number(scaled.Clipping(group).factor, factors[g], {1e-7, 1e-5},
                           Concat("clip factor of group ", g, ", step ", step));
      }
    } else if (!report.skip) {
      number("total_norm", report.grad_norm);
      number("clip_coef", report.clip_factor);
    }
  }

  ParameterPtr Find(const std::string& name) const {
    for (const ParameterPtr& parameter : params_) {
      if (parameter->name() == name) return parameter;
    }
    Throw("a group names parameter \"", name, "\", which is not in the list of parameters");
  }

  void SetLearningRates(int64_t step) {
    for (const auto& [key, absolute] :
         {std::pair{"lr_factor_per_step", false}, {"lr_per_step", true}}) {
      if (!hyper_.contains(key)) continue;
      const double value = hyper_[key].at(static_cast<size_t>(step - 1)).get<double>();
      for (int g = 0; g < optimizer_->num_groups(); ++g) {
        optimizer_->set_lr(g, absolute ? value : base_lrs_[static_cast<size_t>(g)] * value);
      }
    }
  }

  // Gradients keep the recorded dtype even if the weights are f64: the recorded float64 runs had
  // the same ones. Micro-gradients are accumulated as in a training loop: the caller divides, the
  // parameter adds.
  void FeedGradient(Parameter& parameter, int64_t step) {
    const std::string entry = Concat("grad/", parameter.name(), "/", step);
    if (!golden_.contains(entry + "/micro0")) {
      if (golden_.contains(entry)) Accumulate(parameter, golden_.Load(entry));
      return;
    }
    const Json accumulation = golden_.required("accumulation");
    const bool mean = accumulation.at("mode").get<std::string>() == "mean";
    const auto count = accumulation.at("micro_batches").get<int64_t>();
    for (int64_t k = 0; k < count; ++k) {
      Tensor micro = golden_.Load(Concat(entry, "/micro", k));
      if (mean) {
        const auto divisor = static_cast<double>(count);
        micro = ops::Div(micro, Tensor::Full({}, micro.dtype(), divisor, golden_.context()));
      }
      Accumulate(parameter, std::move(micro));
    }
  }

  static void Accumulate(Parameter& parameter, Tensor grad) {
    if (!parameter.has_grad()) parameter.set_grad_dtype(grad.dtype());
    parameter.AccumulateGrad(std::move(grad));
  }

  double ParamTolerance(const std::string& name, const char* key) const {
    const Json own = tolerance_.value("per_param", Json::object()).value(name, Json::object());
    return own.contains(key) ? own[key].get<double>() : tolerance_.at(key).get<double>();
  }

  void CompareWeights(size_t i, int64_t step) {
    const std::string& name = params_[i]->name();
    const std::string entry = Concat("param/", name, "/", step);
    if (!golden_.contains(entry)) return;
    if (HasLowBitTolerances(tolerance_)) {
      return CompareLowBitWeights(params_[i]->data().ToVector<double>(), golden_.Values(entry),
                                  tolerance_, Concat("param ", name, ", step ", step), comparison_);
    }
    const Tolerances tolerances{ParamTolerance(name, "atol"), tolerance_.at("rtol").get<double>()};
    comparison_.Elements(params_[i]->data().ToVector<double>(), golden_.Values(entry), tolerances,
                         Concat("param ", name, ", step ", step));
  }

  // Weights change little relative to their size, so this compares the whole update, too.
  void CompareUpdate(size_t i, int64_t steps) {
    const std::string& name = params_[i]->name();
    const std::vector<double> value = params_[i]->data().ToVector<double>();
    const std::string entry = Concat("param/", name, "/", steps);
    if (golden_.contains(entry) && !HasLowBitTolerances(tolerance_)) {
      comparison_.RelativeNorm(value, golden_.Values(entry), init_[i],
                               ParamTolerance(name, "update_rel_l2"),
                               Concat("update of ", name, ", step ", steps));
    }
    const std::string exact = Concat("ref64/param/", name, "/", steps);
    if (dtype_ == DType::kF64 && golden_.contains(exact)) {
      comparison_.RelativeNorm(value, golden_.Values(exact), init_[i], 1e-7,
                               Concat("float64 update of ", name, ", step ", steps));
    }
  }

  // States have no tolerances of their own. They use the parameter's tolerance, relative to the
  // largest value that the state has had (sums of gradients may cancel at the recorded step). The
  // minimum is the error of a reference that keeps its betas in f32:
  //   (1 - 0.999f) / 0.001 - 1 = 1.3e-5
  void CompareStates(const optim::ParamView& view, int64_t step) {
    const std::string prefix = Concat("state/", view.name(), "/");
    if (const std::string entry = Concat(prefix, "step/", step); golden_.contains(entry)) {
      // SOAP's first update is not counted there.
      const int64_t uncounted = optimizer_->name() == "soap" && view.step() > 0 ? 1 : 0;
      comparison_.Number(static_cast<double>(view.step() - uncounted), golden_.Values(entry).at(0),
                         {}, Concat("step count of ", view.name(), ", step ", step));
    }
    for (const optim::NamedState& state : view.states()) {
      if (HasLowBitTolerances(tolerance_)) {
        CompareLowBitState(golden_, view, state, step, comparison_);
        continue;
      }
      std::vector<double> values = state.value.ToVector<double>();
      double& largest = largest_state_[view.name() + "/" + state.name];
      for (const double value : values) largest = std::max(largest, std::fabs(value));
      const std::string entry = Concat(prefix, state.name, "/", step);
      if (!golden_.contains(entry)) continue;
      // In SOAP's bases, whose signs are arbitrary.
      if (optimizer_->name() == "soap" && state.name == "exp_avg") continue;
      if (state.name == "Q") AlignColumns(golden_, entry, values);
      double weights = 1e-30;
      for (const double value : InitOf(view.name())) weights = std::max(weights, std::fabs(value));
      const double relative = std::max(3e-5, ParamTolerance(view.name(), "atol") / weights);
      comparison_.Elements(values, golden_.Values(entry),
                           {relative * largest, tolerance_.at("rtol").get<double>()},
                           Concat(state.name, " of ", view.name(), ", step ", step));
    }
  }

  const std::vector<double>& InitOf(const std::string& name) const {
    for (size_t i = 0; i < params_.size(); ++i) {
      if (params_[i]->name() == name) return init_[i];
    }
    Throw("no parameter \"", name, "\"");
  }

  const GoldenCase& golden_;
  DType dtype_;
  Json hyper_, tolerance_;
  std::vector<ParameterPtr> params_;
  std::vector<std::vector<double>> init_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::vector<double> base_lrs_;
  int64_t step_ = 0;
  std::map<std::string, double> largest_state_;
  Comparison comparison_;
};

}  // namespace

Comparison ReplayOptimizer(const GoldenCase& golden, DType dtype) {
  return OptimizerReplay(golden, dtype).Run();
}

}  // namespace apogee::verify
