// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/lowrank/galore_adamw.h"

#include <cmath>

#include "apogee/optim/adam/moment_fields.h"
#include "apogee/optim/core/make_chunks.h"

namespace apogee::optim {
namespace {

AdamSettings AdamSettingsOf(const GaLoreAdamWOptions& o, const ParamView& view, double decay) {
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

std::vector<OptionField<GaLoreAdamWOptions>> GaLoreAdamWOptions::Fields() {
  using O = GaLoreAdamWOptions;
  return JoinFields<O>(
      {MomentFields<O>("decoupled"),
       {{"correct_bias", &O::correct_bias, {}, "corrects the moments' start at zero"}},
       GaLoreFields<O>()});
}

void GaLoreAdamWRule::States(const Subject& of, std::vector<StateSpec>& specs) const {
  const GaLoreSettings settings = GaLoreOf(of.options);
  if (!Projects(settings, of.view)) {
    specs = {{"exp_avg"}, {"exp_avg_sq"}};
    return;
  }
  if (KeepsMoments(of.view)) {
    const Shape shape = PlanOf(settings, of.view).low_rank();
    specs = {{"exp_avg", StateKind::kLowRank, shape}, {"exp_avg_sq", StateKind::kLowRank, shape}};
  }
  AppendBasisSpecs(settings, of.view, specs);
}

Tensor GaLoreAdamWRule::LowRankUpdate(const ActiveParam& param, ParamView& states,
                                      const Projected& projected, const RuleStep& step) {
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
      {AdamSettingsOf(o, states, 0)}};
  const DeviceContext& context = *grad.context();
  OptimKernelsFor(context).adam(context, {grad.dtype(), step.decision, {&chunk, 1}});
  return update;
}

void GaLoreAdamWRule::Update(const RuleStep& step) {
  const GaLoreAdamWOptions& o = options(step.group);
  const double decay = o.lr * o.weight_decay;
  const std::vector<ActiveParam> plain =
      ForEachProjected(step.params, [&](const ActiveParam& param, const GaLoreSettings& settings) {
        UpdateProjected(settings, param, step, DecayKind::kAfter, decay, {.rate = 1});
      });
  const auto element = [&](const ActiveParam& p) { return AdamSettingsOf(o, *p.view, decay); };
  RunElements(&OptimKernels::adam, plain, step.decision, element, {"exp_avg", "exp_avg_sq"});
}

template class OptimizerOf<GaLoreAdamWRule>;

}  // namespace apogee::optim
