// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "apogee/autograd/grad_mode.h"
#include "apogee/optim/core/options_agreement.h"
#include "apogee/optim/options.h"
#include "apogee/optim/step/device_decision.h"

namespace apogee::optim {
namespace {

using internal::Concat;

std::string FormatProblems(const std::string& name, const std::vector<std::string>& problems) {
  std::string text = "optimizer " + name + ": ";
  for (size_t i = 0; i < problems.size(); ++i) text += (i > 0 ? "; " : "") + problems[i];
  return text;
}

}  // namespace

Optimizer::Optimizer(std::string name, std::vector<std::vector<autograd::ParameterPtr>> groups,
                     std::vector<std::string> problems)
    : name_(std::move(name)), reducer_(std::make_unique<StatReducer>()) {
  std::set<const autograd::Parameter*> seen;
  std::set<std::string> names;
  if (groups.empty()) problems.emplace_back("there are no parameter groups");
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].empty()) problems.push_back(Concat("group ", g, " has no parameters"));
    for (const autograd::ParameterPtr& parameter : groups[g]) {
      if (parameter == nullptr) {
        problems.push_back(Concat("group ", g, " has a null parameter"));
      } else if (!seen.insert(parameter.get()).second) {
        problems.push_back(Concat("parameter \"", parameter->name(),
                                  "\" is given twice; give each parameter to one group, once"));
      } else if (!names.insert(parameter->name()).second) {
        problems.push_back(Concat("two parameters are named \"", parameter->name(),
                                  "\"; states are kept by name, so names must differ"));
      } else {
        views_.emplace_back(parameter);
      }
    }
    group_sizes_.push_back(static_cast<int>(groups[g].size()));
  }
  group_states_.resize(groups.size());
  if (!problems.empty()) Throw(FormatProblems(name_, problems));
}

Optimizer::~Optimizer() {
  try {
    Settle();
  } catch (const Error&) {
    // The GPU has failed. Nobody reads this report.
  }
}

void Optimizer::set_step_options(const StepOptions& options) {
  std::vector<std::string> problems;
  if (!(options.max_norm >= 0)) {
    problems.push_back(
        Concat("max_norm is ", options.max_norm, ", must be at least 0 (0: no clipping)"));
  }
  if (!(options.loss_scale > 0) || std::isinf(options.loss_scale)) {
    problems.push_back(
        Concat("loss_scale is ", options.loss_scale, ", must be above 0 and finite"));
  }
  if (!problems.empty()) Throw(FormatProblems(name_, problems));
  step_options_ = options;
}

std::span<const StateSpec> Optimizer::KeepSpecs(std::vector<StateSpec> specs) const {
  const auto same = [](const StateSpec& a, const StateSpec& b) {
    return std::strcmp(a.name, b.name) == 0 && a.kind == b.kind && a.shape == b.shape;
  };
  for (const std::vector<StateSpec>& kept : kept_specs_) {
    if (std::ranges::equal(kept, specs, same)) return kept;
  }
  return kept_specs_.emplace_back(std::move(specs));
}

void Optimizer::set_stat_reducer(std::unique_ptr<StatReducer> reducer) {
  spans_ranks_ = reducer != nullptr;
  reducer_ = spans_ranks_ ? std::move(reducer) : std::make_unique<StatReducer>();
}

uint64_t Optimizer::OptionsDigest() const {
  OptionHash hash;
  for (int group = 0; group < num_groups(); ++group) hash.Add(GroupOptionsDigest(group));
  hash.Add(step_options_.max_norm);
  hash.Add(static_cast<int64_t>(step_options_.norm_kind));
  hash.Add(static_cast<int64_t>(step_options_.nonfinite));
  hash.Add(step_options_.loss_scale);
  return hash.value();
}

uint64_t Optimizer::GroupOptionsDigest(int group) const {
  OptionHash hash;
  for (const auto& [name, value] : group_options(group)) hash.Add(value);
  return hash.value();
}

void Optimizer::zero_grad(bool set_to_none) {
  for (ParamView& view : views_) view.zero_grad(set_to_none);
}

void Optimizer::RefreshMasters() {
  for (ParamView& view : views_) view.RefreshMaster();
}

int64_t Optimizer::PlannedStateBytes() const {
  int64_t bytes = 0;
  ForEachView([&](const ParamView& view, int group) { bytes += PlannedStateBytes(view, group); });
  return bytes;
}

int64_t Optimizer::PlannedStateBytes(const ParamView& view, int group) const {
  if (!view.trainable()) return 0;
  int64_t bytes = 0;
  for (const StateSpec& spec : StateSpecs(view, group)) {
    bytes += view.StateShape(spec).numel() * DTypeSize(view.StateDType(spec.kind));
  }
  return bytes;
}

void Optimizer::DropUndeclaredStates() {
  ForEachView([this](ParamView& view, int group) {
    const std::span<const StateSpec> specs = StateSpecs(view, group);
    std::vector<StateSpec> phase;
    OkOrThrow(PhaseStateSpecs(view, group, group_state(group), phase));
    std::vector<NamedState> kept;
    for (const NamedState& state : view.states()) {
      const auto named = [&](const StateSpec& spec) { return state.name == spec.name; };
      if (std::ranges::any_of(specs, named) || std::ranges::any_of(phase, named)) {
        kept.push_back(state);
      }
    }
    view.ReplaceStates(std::move(kept));
  });
}

std::optional<Tensor> Optimizer::step(const Closure& closure) {
  const TraceSpan span(trace_lane_, "step", {.category = "optimizer"});
  Settle();
  if (std::exchange(options_differ_, false)) ThrowOptionsDiffer(*this, reducer_->group());
  std::optional<Tensor> loss;
  if (closure) {
    autograd::GradModeGuard record(true);
    loss = closure();
  }

  APOGEE_CHECK(refusal_.empty(), refusal_);
  listeners_->Tell(&StepListener::BeforeStep);
  if (fused_report_.has_value()) {
    for (const ParamView& view : views_) {
      APOGEE_CHECK(
          !view.has_grad(), "optimizer ", name_, ": parameter \"", view.name(),
          "\" got a gradient after the fused backward of this step, which has already updated it; ",
          "call step() right after the fused backward");
    }
    report_ = *std::exchange(fused_report_, std::nullopt);
    TellDecided();
    EndStep();
    return loss;
  }
  report_ = {};
  std::vector<ActiveParam> active;
  PendingStep undecided;
  const StepDecision decision = Decide(active, undecided);
  static_cast<StepDecision&>(report_) = decision;
  std::vector<StatBuffer> totals;
  const bool updates = !decision.skip && !active.empty() && Prepare(active, decision, totals);
  const bool is_pending = updates && decision.gate != nullptr;
  if (updates) report_.num_updated = static_cast<int64_t>(active.size());
  if (!is_pending) TellDecided();
  if (updates) {
    Apply(active, decision, totals);
    FinishStep();
    for (const ActiveParam& param : active) param.view->DropTemporaries();
  }
  if (is_pending) pending_ = std::move(undecided);
  EndStep();
  return loss;
}

void Optimizer::TellDecided() const {
  num_skipped_ += report_.skip ? 1 : 0;
  listeners_->Tell(&StepListener::Decided);
}

void Optimizer::EndStep() {
  listeners_->Tell(&StepListener::AfterStep);
  APOGEE_CHECK(!report_.skip || step_options_.nonfinite != NonFinitePolicy::kThrow, "optimizer ",
               name_, ": the gradient of parameter \"", report_.nonfinite_parameter,
               "\" is not finite; the weights were left alone");
}

bool Optimizer::Prepare(std::span<const ActiveParam> active, const StepDecision& decision,
                        std::vector<StatBuffer>& totals) {
  // All memory is allocated before the first step count advances.
  for (const ActiveParam& param : active) {
    param.view->master();
    for (const StateSpec& spec : StateSpecs(*param.view, param.group)) {
      param.view->AddState(spec);
    }
  }
  totals = ReduceStats(active, decision);
  if (std::string name = NonFiniteAfterStats(); !name.empty()) {
    report_.skip = true;
    report_.nonfinite_parameter = std::move(name);
    return false;
  }
  return true;
}

void Optimizer::Apply(std::span<const ActiveParam> active, const StepDecision& decision,
                      std::span<const StatBuffer> totals) {
  for (const ActiveParam& param : active) param.view->set_step(param.view->step() + 1);
  for (size_t begin = 0; begin < active.size();) {
    size_t end = begin;
    while (end < active.size() && active[end].group == active[begin].group) ++end;
    Update(active[begin].group, active.subspan(begin, end - begin), decision, totals);
    begin = end;
  }
}

void Optimizer::set_rank(int rank, int num_ranks) {
  APOGEE_CHECK(0 <= rank && rank < num_ranks, "optimizer ", name_, ": rank ", rank, " of ",
               num_ranks, " does not exist");
  rank_ = rank;
  num_ranks_ = num_ranks;
}

absl::Status Optimizer::CheckGroupState(const GroupState& state, const OptionMap&) const {
  return state.empty()
             ? absl::OkStatus()
             : InvalidArgument("it has a group state, but optimizer ", name_, " has none");
}

std::vector<StatBuffer> Optimizer::ReduceStats(std::span<const ActiveParam> active,
                                               const StepDecision& decision) {
  std::vector<StatBuffer> totals;
  if (active.empty()) return totals;
  DType dtype = DType::kF32;
  for (const ActiveParam& param : active) {
    if (param.view->compute_dtype() == DType::kF64) dtype = DType::kF64;
  }
  for (int phase = 0; phase < num_stat_phases(); ++phase) {
    StatBuffer buffer(dtype, active[0].grad.context());
    DeclareStats(phase, active, buffer);
    buffer.Allocate();
    ComputeStats(phase, active, decision, totals, buffer);
    buffer.CountReplicasOnce();
    reducer_->Reduce(buffer);
    totals.push_back(std::move(buffer));
  }
  return totals;
}

}  // namespace apogee::optim
