// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/onebit/zero_one_adam.h"

#include <algorithm>

#include "apogee/optim/core/make_chunks.h"
#include "apogee/optim/onebit/onebit_definitions.h"
#include "apogee/optim/onebit/onebit_updates.h"

namespace apogee::optim {

std::vector<std::string> ZeroOneAdamOptions::Problems() const {
  OptionProblems problems;
  CheckOneBitOptions(*this, problems);
  const auto at_least_one = [&](const char* name, int64_t value) {
    if (value < 1) problems.Add(internal::Concat(name, " is ", value, ", must be at least 1"));
  };
  at_least_one("var_update_scaler", var_update_scaler);
  at_least_one("local_step_scaler", local_step_scaler);
  at_least_one("local_step_clipper", local_step_clipper);
  return problems.list();
}

std::vector<OptionField<ZeroOneAdamOptions>> ZeroOneAdamOptions::Fields() {
  using O = ZeroOneAdamOptions;
  return {{"lr", &O::lr},
          {"betas", &O::betas},
          {"eps", &O::eps},
          {"weight_decay", &O::weight_decay},
          {"freeze_step", &O::freeze_step},
          {"var_update_scaler", &O::var_update_scaler},
          {"local_step_scaler", &O::local_step_scaler},
          {"local_step_clipper", &O::local_step_clipper},
          {"non_freeze", &O::non_freeze},
          {"shared_scale", &O::shared_scale},
          {"reset_errors", &O::reset_errors},
          {"deepspeed", &O::deepspeed},
          {"amsgrad", &O::amsgrad}};
}

ZeroOneAdam::ZeroOneAdam(std::vector<ParamGroup<ZeroOneAdamOptions>> groups)
    : OneBitOptimizer("zero_one_adam", std::move(groups)) {
  const ZeroOneAdamOptions& first = options(0);
  for (int g = 1; g < num_groups(); ++g) {
    const ZeroOneAdamOptions& o = options(g);
    APOGEE_CHECK(o.var_update_scaler == first.var_update_scaler &&
                     o.local_step_scaler == first.local_step_scaler &&
                     o.local_step_clipper == first.local_step_clipper,
                 "optimizer zero_one_adam: group ", g,
                 ": var_update_scaler, local_step_scaler and local_step_clipper must be those of "
                 "group 0; all groups have the same intervals");
  }
}

void ZeroOneAdam::Loaded() {
  OneBitOptimizer::Loaded();
  drifts_.clear();  // loaded weights and states are those of an average
}

int64_t ZeroOneAdam::Count(const std::string& name) const {
  return std::max<int64_t>(1, static_cast<int64_t>(Number(name)));
}

std::string ZeroOneAdam::ProblemOverRanks(double max_norm) const {
  if (max_norm == 0) return "";
  return internal::Concat(
      "max_norm is ", max_norm,
      ", must be 0: ranks step alone, so no rank knows the norm of the mean gradient, and with "
      "clipping by their own norms ranks would drift apart");
}

std::span<const StateSpec> ZeroOneAdam::StatesUnder(const ParamView&,
                                                    const ZeroOneAdamOptions&) const {
  static constexpr StateSpec kStates[] = {{"exp_avg", StateKind::kElementwise},
                                          {"exp_avg_sq", StateKind::kElementwise}};
  return kStates;
}

void ZeroOneAdam::ComputeStats(int, std::span<const ActiveParam> params,
                               const StepDecision& decision, std::span<const StatBuffer>,
                               StatBuffer&) {
  grads_.clear();
  if (frozen() || RenewsSecondMoment()) {
    JoinErrors(params);
    for (const ActiveParam& param : params) {
      if (frozen() && TakesLocalGrad(param.group)) MakeDrift(*param.view, param.group);
    }
    return;
  }
  std::vector<FeedbackJob> jobs;
  for (const ActiveParam& param : params) {
    if (!TakesLocalGrad(param.group)) continue;
    grads_[param.view] = ScaledGrad(param, decision.grad_scale());
    jobs.push_back({param.view, grads_[param.view]});
  }
  Average(jobs);
  if (!NonFiniteAfterStats().empty()) return grads_.clear();
  if (!compression().deepspeed) return;
  for (const FeedbackJob& job : jobs) feedback().ApplyUserMask(job);
}

void ZeroOneAdam::Update(int group, std::span<const ActiveParam> params,
                         const StepDecision& decision, std::span<const StatBuffer>) {
  const ZeroOneAdamOptions& o = options(group);
  if (!TakesLocalGrad(group)) {
    return AdamWithoutCorrection(params,
                                 {o.lr, o.betas, o.eps, o.weight_decay, decision.grad_scale()});
  }
  if (frozen()) return StepAlone(group, params, decision);
  std::vector<Tensor> grads;
  for (const ActiveParam& param : params) grads.push_back(grads_.extract(param.view).mapped());
  FrozenAdamUpdate(params, grads,
                   {.beta = o.betas[0],
                    .weight = 1 - o.betas[0],
                    .step_size = o.lr,
                    .eps = o.eps,
                    .decay = o.weight_decay});
}

// Called in ComputeStats, where running out of memory has not changed anything yet.
void ZeroOneAdam::MakeDrift(ParamView& view, int group) {
  if (drifts_.contains(&view)) return;
  const Tensor weights = view.master();
  const Tensor anchor = weights.Clone(MemoryCategory::kOptimizerState);
  const Tensor sum = Tensor::Zeros(weights.shape(), weights.dtype(), weights.context(),
                                   MemoryCategory::kOptimizerState);
  drifts_[&view] = {.anchor = anchor, .sum = sum, .group = group};
}

void ZeroOneAdam::StepAlone(int group, std::span<const ActiveParam> params,
                            const StepDecision& decision) {
  const ZeroOneAdamOptions& o = options(group);
  const double keep = 1 - o.lr * o.weight_decay;
  for (const ActiveParam& param : params) {
    ParamView& view = *param.view;
    UpdateMomentum(param, o.betas[0], (1 - o.betas[0]) * decision.grad_scale());
    // Masked elements are not averaged, so they must not change between averages.
    feedback().ApplyMask({&view, view.state("exp_avg")}, compression());
    Drift& drift = drifts_.at(&view);
    drift.weight = keep * drift.weight + o.lr;
    Place(view, drift, o.lr, keep);
  }
}

// Always computes the weights from the anchor, so ranks with the same sum have the same bits.
void ZeroOneAdam::Place(ParamView& view, const Drift& drift, double lr, double keep) {
  const LocalStepArgs::Chunk chunk{
      {UpdateChunkOf({&view, drift.group, view.state("exp_avg")}),
       {drift.anchor.raw(), drift.sum.raw(), view.state("exp_avg_sq").raw()}},
      {lr, keep, options(drift.group).eps}};
  const DeviceContext& context = *drift.sum.context();
  OptimKernelsFor(context).local_step(context, {view.compute_dtype(), 1, {&chunk, 1}});
}

void ZeroOneAdam::SyncReplicas() {
  if (!drifts_.empty()) AverageDrifts();
}

void ZeroOneAdam::AverageDrifts() {
  std::vector<FeedbackJob> jobs;
  for (ParamView& view : views()) {  // in the same order on all ranks
    if (const auto drift = drifts_.find(&view); drift != drifts_.end()) {
      jobs.push_back({&view, drift->second.sum});
    }
  }
  Average(jobs);
  APOGEE_CHECK(NonFiniteAfterStats().empty(), "optimizer ", name(),
               ": the steps that ranks made "
               "alone moved parameter \"",
               NonFiniteAfterStats(),
               "\" to values that are not finite; lower lr, or resume from a checkpoint");
  const comm::GroupPtr& group = feedback().ranks().group;
  for (const FeedbackJob& job : jobs) {
    ParamView& view = *job.view;
    const Drift& drift = drifts_.at(&view);
    if (compression().deepspeed) feedback().ApplyUserMask(job);
    const Tensor m = view.state("exp_avg");
    if (drift.weight > 0) {
      ScaleTo(m, drift.sum, 1 / drift.weight);
    } else if (group != nullptr) {  // lr was 0: weights did not change, but momenta differ
      ScaleTo(m, m, 1.0 / group->size());
      group->AllReduce(m);
    }
    Place(view, drift, /*lr=*/0, /*keep=*/1);
  }
  drifts_.clear();
}

void ZeroOneAdam::Advance(const std::string& counter, const std::string& interval, int64_t limit,
                          int64_t largest) {
  const double count = Number(counter) + 1;
  const bool full = count >= static_cast<double>(limit);
  SetNumber(counter, full ? 0 : count);
  if (full) SetNumber(interval, static_cast<double>(std::min(largest, 2 * Count(interval))));
}

void ZeroOneAdam::FinishStep() {
  const ZeroOneAdamOptions& o = options(0);
  const bool alone = frozen();
  if (alone) {
    if ((global_step() + 1) % local_interval() == 0) SyncReplicas();
    Advance("local_counter", "local_interval", o.local_step_scaler, o.local_step_clipper);
  } else if (RenewsSecondMoment()) {
    feedback().ForgetMasks();
    Advance("var_counter", "var_interval", o.var_update_scaler, int64_t{1} << 40);
  }
  OneBitOptimizer::FinishStep();
  // From now on the messages are sums of momenta instead of gradients.
  if (!alone && frozen()) ResetErrors();
}

template class TypedOptimizer<ZeroOneAdamOptions>;
template class OneBitOptimizer<ZeroOneAdamOptions>;

}  // namespace apogee::optim
