// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/factored/adalomo.h"

#include <cmath>

#include "apogee/optim/core/layerwise.h"
#include "apogee/optim/core/make_chunks.h"
#include "apogee/optim/factored/factored.h"

namespace apogee::optim {

std::vector<OptionField<AdaLomoOptions>> AdaLomoOptions::Fields() {
  using O = AdaLomoOptions;
  using enum OptionCheck;
  return {{"lr", &O::lr, kAtLeastZero, "learning rate, relative to rms(w)"},
          {"weight_decay", &O::weight_decay, kAtLeastZero, "decoupled, times the rate"},
          {"eps", &O::eps, {}, "added to g^2; lower bound of rms(w)"},
          {"clip_threshold", &O::clip_threshold, kPositive, "bound of rms(u)"},
          {"decay_rate", &O::decay_rate, {}, "b = 1 - T^decay_rate"},
          {"clip_grad_value", &O::clip_grad_value, kAboveZero,
           "gradients are clamped to +- this; inf: not"}};
}

void AdaLomoOptions::Check(OptionProblems& problems) const {
  problems.Run(OptionCheck::kPositive, "eps[0]", eps[0]);
  problems.Run(OptionCheck::kAtLeastZero, "eps[1]", eps[1]);
  if (!(decay_rate <= 0 && decay_rate >= -1)) {
    problems.Add(internal::Concat("decay_rate is ", decay_rate, ", must be in [-1, 0]"));
  }
}

void AdaLomoRule::States(const Subject& of, std::vector<StateSpec>& specs) const {
  if (IsFactored(of.view)) {
    specs = {{"exp_avg_sq_row", StateKind::kRow}, {"exp_avg_sq_col", StateKind::kColumn}};
  } else {
    specs = {{"exp_avg_sq"}};
  }
}

absl::Status AdaLomoRule::CheckGroupState(const GroupState& state, const OptionMap&) const {
  for (const auto& [key, values] : state) {
    if (key != "step_num" || values.size() != 1 || !(values[0] >= 0)) {
      return InvalidArgument("the group state of adalomo is one number \"step_num\", got \"", key,
                             "\" with ", values.size());
    }
  }
  return absl::OkStatus();
}

void AdaLomoRule::On(RuleEvent event) {
  if (event != RuleEvent::kUpdated && event != RuleEvent::kRevoked) return;
  for (int group = 0; group < num_groups(); ++group) {
    GroupState& state = store().mutable_group_state(group);
    std::vector<double>& steps = state["step_num"];
    steps.resize(1);
    steps[0] += event == RuleEvent::kUpdated ? 1 : -1;
    if (steps[0] == 0) state.erase("step_num");
  }
}

// Beta2 of the current step. "step_num" counts finished steps only.
double AdaLomoRule::Beta2(int group) const {
  const GroupState& state = store().group_state(group);
  const auto found = state.find("step_num");
  const double steps = found == state.end() ? 0 : found->second[0];
  return 1 - std::pow(steps + 1, options(group).decay_rate);
}

// Statistics:
//   phase 0  row and column sums of g^2 + eps, sum of w^2
//   phase 1  sum of u^2
void AdaLomoRule::DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) {
  for (const ActiveParam& param : params) {
    buffer.AddSums(*param.view, phase == 0 ? NumFactors(*param.view) + 1 : 1);
  }
  if (phase > 0) return;
  factors_.clear();
  for (const ActiveParam& param : params) {
    factors_.push_back(Tensor::Empty({NumFactors(*param.view)}, DType::kF64, param.grad.context(),
                                     MemoryCategory::kWorkspace));
  }
}

void AdaLomoRule::ComputeFactors(int group, std::span<const ActiveParam> params, size_t first,
                                 bool store, const StatBuffer& totals, const StepGate* gate) {
  const Factored of(params, first);
  const AdaLomoFactorArgs args{{}, totals.dtype(), Beta2(group), store, gate, {}};
  RunKernel(of.params, &OptimKernels::adalomo_factors, args, [&](const ActiveParam& param) {
    const size_t entry = of.EntryOf(param);
    const ParamView& view = *param.view;
    return AdaLomoFactorChunk{view.layout().matrix(), view.state("exp_avg_sq_row").raw(),
                              view.state("exp_avg_sq_col").raw(), SumsAt(totals, entry),
                              factors_[entry].address<double>()};
  });
}

AdaLomoArgs AdaLomoRule::ArgsOf(int group, DType stats, const StepDecision& decision) const {
  const AdaLomoOptions& o = options(group);
  return {{},
          stats,
          decision.inv_loss_scale,
          o.clip_grad_value,
          decision.clip_only(),
          o.eps[0],
          Beta2(group),
          o.lr,
          o.weight_decay,
          o.eps[1],
          o.clip_threshold,
          {}};
}

AdaLomoChunk AdaLomoRule::ChunkOf(const ActiveParam& param, size_t entry) const {
  AdaLomoChunk chunk = MakeUpdateChunk<AdaLomoChunk>(param);
  const ParamView& view = *param.view;
  chunk.layout = &view.layout();
  if (IsFactored(view)) {
    chunk.factors = factors_[entry].address<double>();
  } else {
    chunk.exp_avg_sq = view.state("exp_avg_sq").raw();
  }
  return chunk;
}

std::string AdaLomoRule::ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) {
  ForEachGroup(step.params, [&](int group, size_t first, std::span<const ActiveParam> params) {
    if (phase == 1) {
      ComputeFactors(group, params, first, /*store=*/false, step.totals[0], nullptr);
    }
    RunKernel(params, phase == 0 ? &OptimKernels::adalomo_sums : &OptimKernels::adalomo_update_norm,
              ArgsOf(group, buffer.dtype(), step.decision), [&](const ActiveParam& param) {
                const size_t entry = first + static_cast<size_t>(&param - params.data());
                AdaLomoChunk chunk = ChunkOf(param, entry);
                chunk.sums = SumsAt(buffer, entry);
                return chunk;
              });
  });
  return "";
}

void AdaLomoRule::Update(const RuleStep& step) {
  const std::span<const ActiveParam> params = step.params;
  const StatBuffer &sums = step.totals[0], &updates = step.totals[1];
  const size_t first = EntryOf(sums, params[0]);
  ComputeFactors(step.group, params, first, /*store=*/true, sums, step.decision.gate);
  RunKernel(params, &OptimKernels::adalomo, ArgsOf(step.group, sums.dtype(), step.decision),
            [&](const ActiveParam& param) {
              const size_t entry = first + static_cast<size_t>(&param - params.data());
              AdaLomoChunk chunk = ChunkOf(param, entry);
              chunk.weight_sum = SumsAt(sums, entry, NumFactors(*param.view));
              chunk.update_sum = SumsAt(updates, entry);
              return chunk;
            });
}

template class OptimizerOf<AdaLomoRule>;

}  // namespace apogee::optim
