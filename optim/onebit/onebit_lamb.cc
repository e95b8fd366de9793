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

std::vector<std::string> OneBitLambOptions::Problems() const {
  OptionProblems problems;
  CheckOneBitOptions(*this, problems);
  problems.Positive("min_coeff", min_coeff);
  problems.Positive("max_coeff", max_coeff);
  problems.Decay("coeff_beta", coeff_beta);
  problems.Positive("factor_min", factor_min);
  problems.Positive("factor_max", factor_max);
  problems.AtLeastZero("factor_threshold", factor_threshold);
  if (max_coeff < min_coeff) {
    problems.Add(internal::Concat("max_coeff is ", max_coeff, ", below min_coeff ", min_coeff));
  }
  if (factor_max < factor_min) {
    problems.Add(internal::Concat("factor_max is ", factor_max, ", below factor_min ", factor_min));
  }
  return problems.list();
}

std::vector<OptionField<OneBitLambOptions>> OneBitLambOptions::Fields() {
  using O = OneBitLambOptions;
  return {{"lr", &O::lr},
          {"betas", &O::betas},
          {"eps", &O::eps},
          {"weight_decay", &O::weight_decay},
          {"freeze_step", &O::freeze_step},
          {"max_coeff", &O::max_coeff},
          {"min_coeff", &O::min_coeff},
          {"coeff_beta", &O::coeff_beta},
          {"factor_max", &O::factor_max},
          {"factor_min", &O::factor_min},
          {"factor_threshold", &O::factor_threshold},
          {"non_freeze", &O::non_freeze},
          {"shared_scale", &O::shared_scale},
          {"reset_errors", &O::reset_errors},
          {"deepspeed", &O::deepspeed},
          {"amsgrad", &O::amsgrad}};
}

std::span<const StateSpec> OneBitLamb::StatesUnder(const ParamView&,
                                                   const OneBitLambOptions&) const {
  static constexpr StateSpec kStates[] = {{"exp_avg", StateKind::kElementwise},
                                          {"exp_avg_sq", StateKind::kElementwise},
                                          {kCoefficient, StateKind::kScalar}};
  return kStates;
}

absl::Status OneBitLamb::PhaseStateSpecs(const ParamView& view, int group, const GroupState& state,
                                         std::vector<StateSpec>& specs) const {
  const auto found = state.find("switched");
  if (found != state.end() && found->second.at(0) == 1 && MayTakeLocalGrad(group)) {
    specs.push_back({kFresh, StateKind::kElementwise});
    specs.push_back({kLastFactor, StateKind::kScalar});
    specs.push_back({kScaling, StateKind::kScalar});
  }
  return OneBitOptimizer::PhaseStateSpecs(view, group, state, specs);
}

void OneBitLamb::DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) {
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

void OneBitLamb::ComputeStats(int phase, std::span<const ActiveParam> all,
                              const StepDecision& decision, std::span<const StatBuffer> totals,
                              StatBuffer& buffer) {
  if (phase == kSwitchPhase) {
    for (const StatBuffer::Entry& entry : buffer.sum_entries()) {
      const Tensor m = entry.view->state("exp_avg");
      NormChunk chunk{m.raw(), m.dtype(), entry.view->layout().local_numel(), 0};
      OptimKernelsFor(*m.context()).grad_norm(*m.context(), {NormKind::kL2, {&chunk, 1}});
      StatSlice(buffer, StatSection::kSums, entry.offset, 1).Fill(chunk.result);
    }
    return;
  }
  if (frozen()) {
    if (!switched()) Switch(all, totals[kSwitchPhase]);
    AgreeOnMomenta(all, decision);
    if (!NonFiniteAfterStats().empty()) return;
  }
  const DeviceContext& context = *all[0].grad.context();
  ForEachGroup(all, [&](int group, size_t, std::span<const ActiveParam> params) {
    if (TakesLocalGrad(group)) {
      ForEachComputeDType<OneBitLambChunk>(
          params, [&](const ActiveParam& param) { return CompressedChunk(param, buffer); },
          [&](DType dtype, std::span<const OneBitLambChunk> chunks) {
            OneBitLambArgs args = CompressedArgs(group, dtype, buffer.dtype());
            args.chunks = chunks;
            OptimKernelsFor(context).onebit_lamb_sums(context, args);
          });
    } else {
      ForEachComputeDType<LambChunk>(
          params, [&](const ActiveParam& param) { return WarmUpChunk(param, buffer); },
          [&](DType dtype, std::span<const LambChunk> chunks) {
            LambArgs args = WarmUpArgs(group, dtype, buffer.dtype(), decision.grad_scale());
            args.chunks = chunks;
            OptimKernelsFor(context).lamb_sums(context, args);
          });
    }
  });
}

// Uses the momenta and second moments of the warm-up only, so calling it again after a skipped step
// gives the same result.
void OneBitLamb::Switch(std::span<const ActiveParam> params, const StatBuffer& squares) {
  double total = 0;
  std::map<const ParamView*, double> sizes;
  for (const ActiveParam& param : params) {
    if (!TakesLocalGrad(param.group)) continue;
    const auto n = static_cast<double>(param.view->layout().logical_shape().numel());
    total += sizes[param.view] = std::sqrt(Sum(squares, *param.view, 0) / n);
  }
  const double mean = sizes.empty() ? 0 : total / static_cast<double>(sizes.size());
  ForEachView([&](ParamView& view, int group) {
    if (!MayTakeLocalGrad(group) || (view.step() == 0 && !sizes.contains(&view))) return;
    view.AddState(kFresh, StateKind::kElementwise)
        .CopyFrom(view.AddState("exp_avg_sq", StateKind::kElementwise));
    view.AddState(kLastFactor, StateKind::kScalar).Fill(1);
    const auto size = sizes.find(&view);
    const bool zero = size == sizes.end() || size->second == 0;
    view.AddState(kScaling, StateKind::kScalar).Fill(zero ? 1 : mean / size->second);
  });
}

void OneBitLamb::AgreeOnMomenta(std::span<const ActiveParam> params, const StepDecision& decision) {
  momenta_.clear();
  std::vector<FeedbackJob> jobs;
  for (const ActiveParam& param : params) {
    if (!TakesLocalGrad(param.group)) continue;
    ParamView& view = *param.view;
    for (const char* name : {kLastFactor, kScaling}) view.AddState(name, StateKind::kScalar);
    view.AddState(kFresh, StateKind::kElementwise);
    const double beta = options(param.group).betas[0], scaling = NumberOf(view, kScaling);
    momenta_[&view] =
        BlendMomentum(param, beta * scaling, (1 - beta) * decision.grad_scale() * scaling);
    jobs.push_back({&view, momenta_[&view]});
  }
  Average(jobs);
  if (!NonFiniteAfterStats().empty()) return momenta_.clear();
  for (const FeedbackJob& job : jobs) {
    ScaleTo(job.value, job.value, 1 / NumberOf(*job.view, kScaling));
    if (compression().deepspeed) feedback().ApplyUserMask(job);
  }
}

LambArgs OneBitLamb::WarmUpArgs(int group, DType dtype, DType stat_dtype, double grad_scale) const {
  const OneBitLambOptions& o = options(group);
  return {dtype,          stat_dtype,  grad_scale,  o.betas[0], 1 - o.betas[0], o.betas[1], o.eps,
          o.weight_decay, o.min_coeff, o.max_coeff, {}};
}

LambChunk OneBitLamb::WarmUpChunk(const ActiveParam& param, const StatBuffer& sums) const {
  LambChunk chunk = MakeUpdateChunk<LambChunk>(param);
  chunk.sums = NumberAt(sums.sum_values(), FindEntry(sums.sum_entries(), param.view)->offset);
  chunk.trusted = true;
  chunk.exp_avg = param.view->state("exp_avg").raw();
  chunk.exp_avg_sq = param.view->state("exp_avg_sq").raw();
  chunk.mean_scale = chunk.root_scale = 1;
  chunk.step_size = options(param.group).lr;
  return chunk;
}

OneBitLambArgs OneBitLamb::CompressedArgs(int group, DType dtype, DType stat_dtype) const {
  const OneBitLambOptions& o = options(group);
  return {dtype, stat_dtype, o.betas[0], o.betas[1], o.eps, o.weight_decay, {}};
}

OneBitLambChunk OneBitLamb::CompressedChunk(const ActiveParam& param,
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

double OneBitLamb::AdaptedRatio(const ActiveParam& param, const StatBuffer& stats) const {
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

void OneBitLamb::Update(int group, std::span<const ActiveParam> params,
                        const StepDecision& decision, std::span<const StatBuffer> totals) {
  const OneBitLambOptions& o = options(group);
  const StatBuffer& stats = totals[kNormPhase];
  const DeviceContext& context = *params[0].grad.context();
  if (TakesLocalGrad(group)) {
    ForEachComputeDType<OneBitLambChunk>(
        params,
        [&](const ActiveParam& param) {
          OneBitLambChunk chunk = CompressedChunk(param, stats);
          chunk.step_size = o.lr * AdaptedRatio(param, stats);
          return chunk;
        },
        [&](DType dtype, std::span<const OneBitLambChunk> chunks) {
          OneBitLambArgs args = CompressedArgs(group, dtype, stats.dtype());
          args.chunks = chunks;
          OptimKernelsFor(context).onebit_lamb(context, args);
        });
    for (const ActiveParam& param : params) momenta_.erase(param.view);
    return;
  }
  ForEachComputeDType<LambChunk>(
      params, [&](const ActiveParam& param) { return WarmUpChunk(param, stats); },
      [&](DType dtype, std::span<const LambChunk> chunks) {
        LambArgs args = WarmUpArgs(group, dtype, stats.dtype(), decision.grad_scale());
        args.chunks = chunks;
        OptimKernelsFor(context).lamb(context, args);
      });
  for (const ActiveParam& param : params) {
    const double weight = std::sqrt(Sum(stats, *param.view, 0));
    const double update = std::sqrt(Sum(stats, *param.view, 1));
    if (weight == 0 || update == 0) continue;
    const double ratio = std::clamp(weight / update, o.min_coeff, o.max_coeff);
    if (ratio == 1) continue;
    const Tensor average = param.view->state(kCoefficient);
    average.Fill(o.coeff_beta * average.Item() + (1 - o.coeff_beta) * ratio);
  }
}

void OneBitLamb::FinishStep() {
  if (frozen()) SetNumber("switched", 1);
  OneBitOptimizer::FinishStep();
}

template class TypedOptimizer<OneBitLambOptions>;
template class OneBitOptimizer<OneBitLambOptions>;

}  // namespace apogee::optim
