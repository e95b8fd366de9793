// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/optimizer.h"

#include <cmath>
#include <utility>

#include "apogee/autograd/grad_mode.h"
#include "apogee/core/text/text.h"
#include "apogee/optim/core/group_stat_reducer.h"
#include "apogee/optim/core/local_gradients.h"
#include "apogee/optim/step/step_runner.h"

namespace apogee::optim {

Optimizer::Optimizer(std::string name, std::span<const std::vector<autograd::ParameterPtr>> groups,
                     std::vector<std::string> problems,
                     const std::function<std::unique_ptr<UpdateRule>()>& make)
    : store_(std::move(name), groups, std::move(problems)),
      rule_(make()),
      runner_(std::make_unique<StepRunner>(store_, *rule_, *listeners_)) {
  store_.Attach(*rule_);
  rule_->Attach(store_);
}

Optimizer::~Optimizer() {
  try {
    Settle();
  } catch (const Error&) {
    // The GPU has failed. Nobody reads this report.
  }
}

void Optimizer::Settle() const { runner_->Settle(); }

std::optional<Tensor> Optimizer::step(const Closure& closure) {
  const TraceSpan span(trace_lane_, "step", {.category = "optimizer"});
  runner_->BeginStep();
  std::optional<Tensor> loss;
  if (closure) {
    autograd::GradModeGuard record(true);
    loss = closure();
  }
  APOGEE_CHECK(refusal_.empty(), refusal_);
  rule_->On(RuleEvent::kBeforeStep);
  listeners_->Tell(&StepListener::BeforeStep);
  runner_->Step();
  return loss;
}

void Optimizer::zero_grad(bool set_to_none) {
  for (ParamView& view : store_.views()) view.zero_grad(set_to_none);
}

const StepReport& Optimizer::last_step() const {
  Settle();
  return runner_->report();
}

int64_t Optimizer::num_skipped_steps() const {
  Settle();
  return runner_->num_skipped();
}

bool Optimizer::may_have_updated() const { return runner_->report().num_updated > 0; }

void Optimizer::set_step_options(const StepOptions& options) {
  std::vector<std::string> problems;
  if (!(options.max_norm >= 0)) {
    problems.push_back(internal::Concat("max_norm is ", options.max_norm,
                                        ", must be at least 0 (0: no clipping)"));
  }
  if (!(options.loss_scale > 0) || std::isinf(options.loss_scale)) {
    problems.push_back(
        internal::Concat("loss_scale is ", options.loss_scale, ", must be above 0 and finite"));
  }
  APOGEE_CHECK(problems.empty(), "optimizer ", name(), ": ", JoinTexts(problems));
  runner_->options() = options;
}

const StepOptions& Optimizer::step_options() const { return runner_->options(); }

void Optimizer::set_stat_reducer(std::unique_ptr<StatReducer> reducer) {
  runner_->set_reducer(std::move(reducer));
}

void Optimizer::SetRanks(const GradientRanks& ranks) {
  LocalGradients* const local = traits().local_gradients;
  APOGEE_CHECK(local != nullptr, "optimizer ", name(), " takes no local gradients");
  store_.set_rank(ranks.rank, ranks.num_ranks);
  if (ranks.group != nullptr) {
    set_stat_reducer(std::make_unique<AddendStatReducer>(ranks.group, ranks.statistics));
  }
  local->SetRanks(ranks);
}

uint64_t Optimizer::OptionsDigest() const { return runner_->OptionsDigest(); }

void Optimizer::ThrowOptionsDiffer(comm::Group* group) const { runner_->ThrowOptionsDiffer(group); }

absl::Status Optimizer::load_state_dict(const StateDict& dict) {
  APOGEE_RETURN_IF_ERROR(states().Load(dict));
  rule_->On(RuleEvent::kLoaded);
  listeners_->Tell(&StepListener::Loaded);
  return absl::OkStatus();
}

void Optimizer::RefreshMasters() {
  for (ParamView& view : store_.views()) view.RefreshMaster();
}

}  // namespace apogee::optim
