// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/onebit/zero_one_adam.h"

#include <algorithm>

#include "apogee/optim/core/make_chunks.h"
#include "apogee/optim/onebit/onebit_definitions.h"
#include "apogee/optim/onebit/onebit_updates.h"

namespace apogee::optim {

std::vector<OptionField<ZeroOneAdamOptions>> ZeroOneAdamOptions::Fields() {
  using O = ZeroOneAdamOptions;
  using enum OptionCheck;
  return OneBitFields<O>(
      {{"var_update_scaler", &O::var_update_scaler, kAtLeastOne, "updates of v until k doubles"},
       {"local_step_scaler", &O::local_step_scaler, kAtLeastOne, "updates until j doubles"},
       {"local_step_clipper", &O::local_step_clipper, kAtLeastOne, "upper bound of j"}});
}
void ZeroOneAdamOptions::Check(OptionProblems& problems) const {
  CheckOneBitOptions(*this, problems);
}

ZeroOneAdamRule::ZeroOneAdamRule(std::vector<ZeroOneAdamOptions> groups)
    : OneBitRule(kName, std::move(groups)) {
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

int64_t ZeroOneAdamRule::Count(const std::string& name) const {
  return std::max<int64_t>(1, static_cast<int64_t>(Number(name)));
}

std::string ZeroOneAdamRule::ProblemOverRanks(double max_norm) const {
  if (max_norm == 0) return "";
  return internal::Concat(
      "max_norm is ", max_norm,
      ", must be 0: ranks step alone, so no rank knows the norm of the mean gradient, and with "
      "clipping by their own norms ranks would drift apart");
}

std::string ZeroOneAdamRule::ComputeStats(int, const RuleStep& step, StatBuffer&) {
  grads_.clear();
  if (frozen() || RenewsSecondMoment()) {
    JoinErrors(step.params);
    for (const ActiveParam& param : step.params) {
      if (frozen() && TakesLocalGrad(param.group)) MakeDrift(*param.view, param.group);
    }
    return "";
  }
  std::vector<FeedbackJob> jobs;
  for (const ActiveParam& param : step.params) {
    if (!TakesLocalGrad(param.group)) continue;
    grads_[param.view] = ScaledGrad(param, step.decision.grad_scale());
    jobs.push_back({param.view, grads_[param.view]});
  }
  std::string bad = Average(jobs);
  if (!bad.empty()) {
    grads_.clear();
  } else if (compression().deepspeed) {
    for (const FeedbackJob& job : jobs) feedback().ApplyUserMask(job);
  }
  return bad;
}

void ZeroOneAdamRule::Update(const RuleStep& step) {
  const ZeroOneAdamOptions& o = options(step.group);
  if (!TakesLocalGrad(step.group)) {
    return AdamWithoutCorrection(
        step.params, {o.lr, o.betas, o.eps, o.weight_decay, step.decision.grad_scale()});
  }
  if (frozen()) return StepAlone(step);
  std::vector<Tensor> grads;
  for (const ActiveParam& param : step.params) {
    grads.push_back(grads_.extract(param.view).mapped());
  }
  FrozenAdamUpdate(step.params, grads,
                   {.beta = o.betas[0],
                    .weight = 1 - o.betas[0],
                    .step_size = o.lr,
                    .eps = o.eps,
                    .decay = o.weight_decay});
}

// Called in ComputeStats, where running out of memory has not changed anything yet.
void ZeroOneAdamRule::MakeDrift(ParamView& view, int group) {
  if (drifts_.contains(&view)) return;
  const Tensor weights = view.master();
  const Tensor anchor = weights.Clone(MemoryCategory::kOptimizerState);
  const Tensor sum = Tensor::Zeros(weights.shape(), weights.dtype(), weights.context(),
                                   MemoryCategory::kOptimizerState);
  drifts_[&view] = {.anchor = anchor, .sum = sum, .group = group};
}

void ZeroOneAdamRule::StepAlone(const RuleStep& step) {
  const ZeroOneAdamOptions& o = options(step.group);
  const double keep = 1 - o.lr * o.weight_decay;
  for (const ActiveParam& param : step.params) {
    ParamView& view = *param.view;
    UpdateMomentum(param, o.betas[0], (1 - o.betas[0]) * step.decision.grad_scale());
    // Masked elements are not averaged, so they must not change between averages.
    feedback().ApplyMask({&view, view.state("exp_avg")}, compression());
    Drift& drift = drifts_.at(&view);
    drift.weight = keep * drift.weight + o.lr;
    Place(view, drift, o.lr, keep);
  }
}

// Always computes the weights from the anchor, so ranks with the same sum have the same bits.
void ZeroOneAdamRule::Place(ParamView& view, const Drift& drift, double lr, double keep) {
  const LocalStepArgs::Chunk chunk{
      {UpdateChunkOf({&view, drift.group, view.state("exp_avg")}),
       {drift.anchor.raw(), drift.sum.raw(), view.state("exp_avg_sq").raw()}},
      {lr, keep, options(drift.group).eps}};
  const DeviceContext& context = *drift.sum.context();
  OptimKernelsFor(context).local_step(context, {view.compute_dtype(), 1, {&chunk, 1}});
}

void ZeroOneAdamRule::SyncReplicas() {
  if (!drifts_.empty()) AverageDrifts();
}

void ZeroOneAdamRule::AverageDrifts() {
  std::vector<FeedbackJob> jobs;
  for (ParamView& view : store().views()) {  // in the same order on all ranks
    if (const auto drift = drifts_.find(&view); drift != drifts_.end()) {
      jobs.push_back({&view, drift->second.sum});
    }
  }
  const std::string bad = Average(jobs);
  APOGEE_CHECK(bad.empty(), "optimizer ", kName,
               ": the steps that ranks made alone moved parameter \"", bad,
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

void ZeroOneAdamRule::Advance(const std::string& counter, const std::string& interval,
                              int64_t limit, int64_t largest) {
  const double count = Number(counter) + 1;
  const bool full = count >= static_cast<double>(limit);
  SetNumber(counter, full ? 0 : count);
  if (full) SetNumber(interval, static_cast<double>(std::min(largest, 2 * Count(interval))));
}

void ZeroOneAdamRule::On(RuleEvent event) {
  if (event == RuleEvent::kUpdated) return FinishStep();
  OneBitRule::On(event);
  // Loaded weights and states are those of an average.
  if (event == RuleEvent::kLoaded) drifts_.clear();
}

void ZeroOneAdamRule::FinishStep() {
  const ZeroOneAdamOptions& o = options(0);
  const bool alone = frozen();
  if (alone) {
    if ((global_step() + 1) % local_interval() == 0) SyncReplicas();
    Advance("local_counter", "local_interval", o.local_step_scaler, o.local_step_clipper);
  } else if (RenewsSecondMoment()) {
    feedback().ForgetMasks();
    Advance("var_counter", "var_interval", o.var_update_scaler, int64_t{1} << 40);
  }
  OneBitRule::On(RuleEvent::kUpdated);
  // From now on the messages are sums of momenta instead of gradients.
  if (!alone && frozen()) ResetErrors();
}

template class OneBitRule<ZeroOneAdamOptions>;
template class OptimizerOf<ZeroOneAdamRule>;

}  // namespace apogee::optim
