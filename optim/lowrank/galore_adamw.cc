// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/lowrank/galore_adamw.h"

#include <cmath>

#include "apogee/optim/core/make_chunks.h"

namespace apogee::optim {
namespace {

AdamSettings SettingsOf(const GaLoreAdamWOptions& o, const ParamView& view, double decay) {
  const auto t = static_cast<double>(view.step());
  const double correction1 = o.correct_bias ? 1 - std::pow(o.betas[0], t) : 1;
  const double root2 = o.correct_bias ? std::sqrt(1 - std::pow(o.betas[1], t)) : 1;
  return {.decay_kind = decay == 0 ? DecayKind::kNone : DecayKind::kAfter,
          .decay = decay,
          .beta1 = o.betas[0],
          .beta2 = o.betas[1],
          .eps = o.eps,
          .step_size = o.lr * root2 / correction1,
          .root_scale = 1};
}

}  // namespace

std::vector<std::string> GaLoreAdamWOptions::Problems() const {
  OptionProblems problems;
  problems.AtLeastZero("lr", lr);
  problems.Decay("betas[0]", betas[0]);
  problems.Decay("betas[1]", betas[1]);
  problems.AtLeastZero("eps", eps);
  problems.AtLeastZero("weight_decay", weight_decay);
  CheckGaLore(GaLoreOf(*this), problems);
  return problems.list();
}

std::vector<OptionField<GaLoreAdamWOptions>> GaLoreAdamWOptions::Fields() {
  using O = GaLoreAdamWOptions;
  std::vector<OptionField<O>> fields = {{"lr", &O::lr},
                                        {"betas", &O::betas},
                                        {"eps", &O::eps},
                                        {"weight_decay", &O::weight_decay},
                                        {"correct_bias", &O::correct_bias}};
  AppendGaLoreFields(fields);
  return fields;
}

std::span<const StateSpec> GaLoreAdamW::StatesUnder(const ParamView& view,
                                                    const GaLoreAdamWOptions& options) const {
  const GaLoreSettings settings = GaLoreOf(options);
  if (!Projects(settings, view)) {
    return KeepSpecs(
        {{"exp_avg", StateKind::kElementwise}, {"exp_avg_sq", StateKind::kElementwise}});
  }
  const Shape shape = PlanOf(settings, view).low_rank();
  std::vector<StateSpec> specs;
  if (KeepsMoments(view)) {
    specs = {{"exp_avg", StateKind::kLowRank, shape}, {"exp_avg_sq", StateKind::kLowRank, shape}};
  }
  AppendBasisSpecs(settings, view, specs);
  return KeepSpecs(std::move(specs));
}

void GaLoreAdamW::DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) {
  for (const ActiveParam& p : params) {
    const GaLoreSettings settings = GaLoreOf(options(p.group));
    if (Projects(settings, *p.view)) Declare(phase, settings, p, buffer);
  }
}

void GaLoreAdamW::ComputeStats(int phase, std::span<const ActiveParam> params,
                               const StepDecision& decision, std::span<const StatBuffer> totals,
                               StatBuffer& buffer) {
  for (const ActiveParam& p : params) {
    const GaLoreSettings settings = GaLoreOf(options(p.group));
    if (Projects(settings, *p.view)) Compute(phase, settings, p, decision, totals, buffer);
  }
}

Tensor GaLoreAdamW::LowRankUpdate(const ActiveParam& param, ParamView& states,
                                  const Projected& projected, const StepDecision& decision,
                                  std::span<const StatBuffer>) {
  const GaLoreAdamWOptions& o = options(param.group);
  for (const char* name : {"exp_avg", "exp_avg_sq"}) {
    if (!projected.refreshed || o.on_refresh == "keep") break;
    const Tensor moment = states.state(name);
    if (o.on_refresh == "reset") {
      moment.Fill(0);
    } else {
      moment.CopyFrom(projected.rotation.Apply(moment, name == std::string("exp_avg_sq")));
    }
  }
  // An Adam step from zero weights gives the update itself.
  const Tensor& grad = projected.grad;
  const Tensor update =
      Tensor::Zeros(grad.shape(), grad.dtype(), grad.context(), MemoryCategory::kWorkspace);
  const AdamArgs::Chunk chunk{
      {{update.raw(), grad.raw(), grad.dtype(), nullptr, grad.dtype(), update.numel()},
       {states.state("exp_avg").raw(), states.state("exp_avg_sq").raw()}},
      {SettingsOf(o, states, 0)}};
  const DeviceContext& context = *grad.context();
  OptimKernelsFor(context).adam(context, {grad.dtype(), decision, {&chunk, 1}});
  return update;
}

void GaLoreAdamW::Update(int group, std::span<const ActiveParam> params,
                         const StepDecision& decision, std::span<const StatBuffer> totals) {
  const GaLoreAdamWOptions& o = options(group);
  const GaLoreSettings settings = GaLoreOf(o);
  const double decay = o.lr * o.weight_decay;
  std::vector<ActiveParam> plain;
  for (const ActiveParam& p : params) {
    if (!Projects(settings, *p.view)) {
      plain.push_back(p);
      continue;
    }
    UpdateProjected(settings, p, decision, totals, DecayKind::kAfter, decay, {.rate = 1});
  }
  const auto element = [&](const ActiveParam& p) { return SettingsOf(o, *p.view, decay); };
  RunElements(&OptimKernels::adam, plain, decision, element, {"exp_avg", "exp_avg_sq"});
}

template class TypedOptimizer<GaLoreAdamWOptions>;

}  // namespace apogee::optim
