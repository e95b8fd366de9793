// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/lowrank/galore_adamw.h"

#include <cmath>

#include "apogee/optim/core/make_chunks.h"

namespace apogee::optim {
namespace {

void SetStepSize(const GaLoreAdamWOptions& o, const ParamView& view, AdamChunk& chunk) {
  const auto t = static_cast<double>(view.step());
  const double correction1 = o.correct_bias ? 1 - std::pow(o.betas[0], t) : 1;
  const double root2 = o.correct_bias ? std::sqrt(1 - std::pow(o.betas[1], t)) : 1;
  chunk.exp_avg = view.state("exp_avg").raw();
  chunk.exp_avg_sq = view.state("exp_avg_sq").raw();
  chunk.step_size = o.lr * root2 / correction1;
  chunk.root_scale = 1;
}

AdamArgs ArgsOf(const GaLoreAdamWOptions& o, DType dtype, double decay,
                const GradFactor& grad_scale, std::span<const AdamChunk> chunks) {
  const DecayKind kind = decay == 0 ? DecayKind::kNone : DecayKind::kAfter;
  return {dtype, kind, grad_scale, decay, o.betas[0], o.betas[1], o.eps, /*amsgrad=*/false, chunks};
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
  AdamChunk chunk{};
  chunk.weight = update.raw();
  chunk.grad = grad.raw();
  chunk.grad_dtype = grad.dtype();
  chunk.n = update.numel();
  SetStepSize(o, states, chunk);
  const DeviceContext& context = *grad.context();
  OptimKernelsFor(context).adam(context,
                                ArgsOf(o, grad.dtype(), 0, decision.grad_scale(), {&chunk, 1}));
  return update;
}

void GaLoreAdamW::Update(int group, std::span<const ActiveParam> params,
                         const StepDecision& decision, std::span<const StatBuffer> totals) {
  const GaLoreAdamWOptions& o = options(group);
  const GaLoreSettings settings = GaLoreOf(o);
  const double decay = o.lr * o.weight_decay;
  const DeviceContext& context = *params[0].grad.context();
  std::vector<ActiveParam> plain;
  for (const ActiveParam& p : params) {
    if (!Projects(settings, *p.view)) {
      plain.push_back(p);
      continue;
    }
    UpdateProjected(settings, p, decision, totals, DecayKind::kAfter, decay, {.rate = 1});
  }
  const auto make_chunk = [&](const ActiveParam& param) {
    AdamChunk chunk = MakeUpdateChunk<AdamChunk>(param);
    SetStepSize(o, *param.view, chunk);
    return chunk;
  };
  ForEachComputeDType<AdamChunk>(
      plain, make_chunk, [&](DType dtype, std::span<const AdamChunk> chunks) {
        OptimKernelsFor(context).adam(context,
                                      ArgsOf(o, dtype, decay, decision.grad_scale(), chunks));
      });
}

template class TypedOptimizer<GaLoreAdamWOptions>;

}  // namespace apogee::optim
