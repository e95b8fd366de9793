// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/onebit/onebit_lamb.h"

#include <algorithm>
#include <cmath>

#include "apogee/optim/core/layerwise.h"
#include "apogee/optim/core/make_chunks.h"
#include "apogee/optim/core/stat_values.h"
#include "apogee/optim/onebit/onebit_definitions.h"
#include "apogee/optim/onebit/onebit_updates.h"

namespace apogee::optim {
namespace {

constexpr int kSwitchPhase = 0;
constexpr int kNormPhase = 1;
constexpr const char* kCoefficient = "coeff_freeze";
constexpr const char* kLastFactor = "last_factor";
constexpr const char* kScaling = "scaling_coeff";
constexpr const char* kFresh = "exp_avg_sq_fresh";

// The value of a scalar state; 1 before it has been set.
double NumberOf(const ParamView& view, const char* name) {
  const Tensor state = view.state(name);
  const double value = state.defined() ? state.Item() : 0;
  return value == 0 ? 1 : value;
}

double Sum(const StatBuffer& stats, const ParamView& view, int64_t index) {
  return StatNumber(stats, StatSection::kSums,
                    FindEntry(stats.sum_entries(), &view)->offset + index);
}

void* NumberAt(const Tensor& values, int64_t offset) {
  return static_cast<std::byte*>(values.raw()) + offset * DTypeSize(values.dtype());
}

}  // namespace

std::vector<OptionField<OneBitLambOptions>> OneBitLambOptions::Fields() {
  using O = OneBitLambOptions;
  using enum OptionCheck;
  return OneBitFields<O>(
      {{"max_coeff", &O::max_coeff, kPositive, "upper bound of the ratio c"},
       {"min_coeff", &O::min_coeff, kPositive, "lower bound of it"},
       {"coeff_beta", &O::coeff_beta, kDecay, "decay rate of its average"},
       {"factor_max", &O::factor_max, kPositive, "upper bound of r"},
       {"factor_min", &O::factor_min, kPositive, "lower bound of r"},
       {"factor_threshold", &O::factor_threshold, kAtLeastZero, "largest change of r in a step"}});
}

void OneBitLambOptions::Check(OptionProblems& problems) const {
  CheckOneBitOptions(*this, problems);
  if (max_coeff < min_coeff) {
    problems.Add(internal::Concat("max_coeff is ", max_coeff, ", below min_coeff ", min_coeff));
  }
  if (factor_max < factor_min) {
    problems.Add(internal::Concat("factor_max is ", factor_max, ", below factor_min ", factor_min));
  }
}

void OneBitLambRule::States(const Subject& of, std::vector<StateSpec>& specs) const {
  specs = {{"exp_avg"}, {"exp_avg_sq"}, {kCoefficient, StateKind::kScalar}};
  const auto found = of.group_state.find("switched");
  const bool switched = found != of.group_state.end() && found->second.at(0) == 1;
  if (switched && !of.options.non_freeze) {
    specs.push_back({.name = kFresh, .made_by_rule = true});
    specs.push_back({.name = kLastFactor, .kind = StateKind::kScalar, .made_by_rule = true});
    specs.push_back({.name = kScaling, .kind = StateKind::kScalar, .made_by_rule = true});
  }
  AppendErrors(of, specs);
}

void OneBitLambRule::DeclareStats(int phase, std::span<const ActiveParam> params,
                                  StatBuffer& buffer) {
  for (const ActiveParam& param : params) {
    const bool compressed = TakesLocalGrad(param.group);
    if (phase == kNormPhase) {
      buffer.AddSums(*param.view, 2);
      if (compressed) buffer.AddMaxima(*param.view, 1);
    } else if (compressed && !switched()) {
      buffer.AddSums(*param.view, 1);
    }
  }
}

std::string OneBitLambRule::ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) {
  if (phase == kSwitchPhase) {
    for (const StatBuffer::Entry& entry : buffer.sum_entries()) {
      const Tensor m = entry.view->state("exp_avg");
      NormChunk chunk{m.raw(), m.dtype(), entry.view->layout().local_numel(), 0};
      OptimKernelsFor(*m.context()).grad_norm(*m.context(), {NormKind::kL2, {&chunk, 1}});
      StatSlice(buffer, StatSection::kSums, entry.offset, 1).Fill(chunk.result);
    }
    return "";
  }
  if (frozen()) {
    if (!switched()) Switch(step.params, step.totals[kSwitchPhase]);
    std::string bad = AgreeOnMomenta(step);
    if (!bad.empty()) return bad;
  }
  ForEachGroup(step.params, [&](int group, size_t, std::span<const ActiveParam> params) {
    if (TakesLocalGrad(group)) {
      RunKernel(params, &OptimKernels::onebit_lamb_sums, CompressedArgs(group, buffer.dtype()),
                [&](const ActiveParam& param) { return CompressedChunk(param, buffer); });
    } else {
      RunKernel(params, &OptimKernels::lamb_sums,
                WarmUpArgs(group, buffer.dtype(), step.decision.grad_scale()),
                [&](const ActiveParam& param) { return WarmUpChunk(param, buffer); });
    }
  });
  return "";
}

// Uses the momenta and second moments of the warm-up only, so calling it again after a skipped step
// gives the same result.
void OneBitLambRule::Switch(std::span<const ActiveParam> params, const StatBuffer& squares) {
  double total = 0;
  std::map<const ParamView*, double> sizes;
  for (const ActiveParam& param : params) {
    if (!TakesLocalGrad(param.group)) continue;
    const auto n = static_cast<double>(param.view->layout().logical_shape().numel());
    total += sizes[param.view] = std::sqrt(Sum(squares, *param.view, 0) / n);
  }
  const double mean = sizes.empty() ? 0 : total / static_cast<double>(sizes.size());
  store().ForEachView([&](ParamView& view, int group) {
    if (!MayTakeLocalGrad(group) || (view.step() == 0 && !sizes.contains(&view))) return;
    view.AddState(kFresh, StateKind::kElementwise)
        .CopyFrom(view.AddState("exp_avg_sq", StateKind::kElementwise));
    view.AddState(kLastFactor, StateKind::kScalar).Fill(1);
    const auto size = sizes.find(&view);
    const bool zero = size == sizes.end() || size->second == 0;
    view.AddState(kScaling, StateKind::kScalar).Fill(zero ? 1 : mean / size->second);
  });
}

std::string OneBitLambRule::AgreeOnMomenta(const RuleStep& step) {
  momenta_.clear();
  std::vector<FeedbackJob> jobs;
  for (const ActiveParam& param : step.params) {
    if (!TakesLocalGrad(param.group)) continue;
    ParamView& view = *param.view;
    for (const char* name : {kLastFactor, kScaling}) view.AddState(name, StateKind::kScalar);
    view.AddState(kFresh, StateKind::kElementwise);
    const double beta = options(param.group).betas[0], scaling = NumberOf(view, kScaling);
    momenta_[&view] =
        BlendMomentum(param, beta * scaling, (1 - beta) * step.decision.grad_scale() * scaling);
    jobs.push_back({&view, momenta_[&view]});
  }
  std::string bad = Average(jobs);
  if (!bad.empty()) {
    momenta_.clear();
    return bad;
  }
  for (const FeedbackJob& job : jobs) {
    ScaleTo(job.value, job.value, 1 / NumberOf(*job.view, kScaling));
    if (compression().deepspeed) feedback().ApplyUserMask(job);
  }
  return bad;
}

LambArgs OneBitLambRule::WarmUpArgs(int group, DType stat_dtype,
                                    const GradFactor& grad_scale) const {
  const OneBitLambOptions& o = options(group);
  return {{},         stat_dtype, grad_scale,     o.betas[0],  1 - o.betas[0],
          o.betas[1], o.eps,      o.weight_decay, o.min_coeff, o.max_coeff,
          {}};
}

LambChunk OneBitLambRule::WarmUpChunk(const ActiveParam& param, const StatBuffer& sums) const {
  LambChunk chunk = MakeUpdateChunk<LambChunk>(param);
  chunk.sums = NumberAt(sums.sum_values(), FindEntry(sums.sum_entries(), param.view)->offset);
  chunk.trusted = true;
  chunk.exp_avg = param.view->state("exp_avg").raw();
  chunk.exp_avg_sq = param.view->state("exp_avg_sq").raw();
  chunk.mean_scale = chunk.root_scale = 1;
  chunk.step_size = options(param.group).lr;
  return chunk;
}

OneBitLambArgs OneBitLambRule::CompressedArgs(int group, DType stat_dtype) const {
  const OneBitLambOptions& o = options(group);
  return {{}, stat_dtype, o.betas[0], o.betas[1], o.eps, o.weight_decay, {}};
}

OneBitLambChunk OneBitLambRule::CompressedChunk(const ActiveParam& param,
                                                const StatBuffer& stats) const {
  OneBitLambChunk chunk = MakeUpdateChunk<OneBitLambChunk>(param);
  const Tensor& momentum = momenta_.at(param.view);
  chunk.grad = momentum.raw();
  chunk.grad_dtype = momentum.dtype();
  chunk.exp_avg = param.view->state("exp_avg").raw();
  chunk.exp_avg_sq = param.view->state("exp_avg_sq").raw();
  chunk.fresh = param.view->state(kFresh).raw();
  chunk.sums = NumberAt(stats.sum_values(), FindEntry(stats.sum_entries(), param.view)->offset);
  chunk.max = NumberAt(stats.max_values(), FindEntry(stats.max_entries(), param.view)->offset);
  return chunk;
}

double OneBitLambRule::AdaptedRatio(const ActiveParam& param, const StatBuffer& stats) const {
  const OneBitLambOptions& o = options(param.group);
  ParamView& view = *param.view;
  double factor =
      StatNumber(stats, StatSection::kMaxima, FindEntry(stats.max_entries(), &view)->offset);
  if (o.weight_decay > 0) {
    const double direction = std::sqrt(Sum(stats, view, 0)),
                 update = std::sqrt(Sum(stats, view, 1));
    const double part = update == 0 ? 1 : std::min(1.0, direction / update);
    factor = factor * part + (1 - part);
  }
  const double last = NumberOf(view, kLastFactor);
  factor = std::clamp(factor, o.factor_min, o.factor_max);
  factor = std::clamp(factor, last * (1 - o.factor_threshold), last * (1 + o.factor_threshold));
  view.state(kLastFactor).Fill(factor);
  return factor * NumberOf(view, kCoefficient);
}

void OneBitLambRule::Update(const RuleStep& step) {
  const int group = step.group;
  const OneBitLambOptions& o = options(group);
  const StatBuffer& stats = step.totals[kNormPhase];
  if (TakesLocalGrad(group)) {
    RunKernel(step.params, &OptimKernels::onebit_lamb, CompressedArgs(group, stats.dtype()),
              [&](const ActiveParam& param) {
                OneBitLambChunk chunk = CompressedChunk(param, stats);
                chunk.step_size = o.lr * AdaptedRatio(param, stats);
                return chunk;
              });
    for (const ActiveParam& param : step.params) momenta_.erase(param.view);
    return;
  }
  RunKernel(step.params, &OptimKernels::lamb,
            WarmUpArgs(group, stats.dtype(), step.decision.grad_scale()),
            [&](const ActiveParam& param) { return WarmUpChunk(param, stats); });
  for (const ActiveParam& param : step.params) {
    const double weight = std::sqrt(Sum(stats, *param.view, 0));
    const double update = std::sqrt(Sum(stats, *param.view, 1));
    if (weight == 0 || update == 0) continue;
    const double ratio = std::clamp(weight / update, o.min_coeff, o.max_coeff);
    if (ratio == 1) continue;
    const Tensor average = param.view->state(kCoefficient);
    average.Fill(o.coeff_beta * average.Item() + (1 - o.coeff_beta) * ratio);
  }
}

void OneBitLambRule::On(RuleEvent event) {
  if (event == RuleEvent::kUpdated && frozen()) SetNumber("switched", 1);
  OneBitRule::On(event);
}

template class OneBitRule<OneBitLambOptions>;
template class OptimizerOf<OneBitLambRule>;

}  // namespace apogee::optim
