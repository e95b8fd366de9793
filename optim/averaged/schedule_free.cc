// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/averaged/schedule_free.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "apogee/core/status.h"
#include "apogee/optim/adam/moment_fields.h"
#include "apogee/optim/core/make_chunks.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::optim {
namespace {

constexpr const char* kNumbers[] = {"k", "lr_max", "scheduled_lr", "weight_sum"};

template <typename O>
constexpr bool kIsAdam = std::is_same_v<O, ScheduleFreeAdamWOptions>;

double NumberOf(const GroupState& state, const char* name) {
  const auto found = state.find(name);
  return found == state.end() ? 0 : found->second.at(0);
}

template <typename O>
std::vector<OptionField<O>> AverageFields() {
  using enum OptionCheck;
  return {{"warmup_steps", &O::warmup_steps, kAtLeastZero, "steps in which the rate rises"},
          {"r", &O::r, kAtLeastZero, "the weight of step t in the average grows with t^r"},
          {"weight_lr_power", &O::weight_lr_power, kAtLeastZero,
           "and with this power of the largest rate"}};
}

}  // namespace

std::vector<OptionField<ScheduleFreeAdamWOptions>> ScheduleFreeAdamWOptions::Fields() {
  using O = ScheduleFreeAdamWOptions;
  return JoinFields<O>({MomentFields<O>("taken at y, beside the normalised gradient"),
                        AverageFields<O>(),
                        {{"inner_momentum", &O::inner_momentum, OptionCheck::kDecay,
                          "averages the gradient above the root; 0: none"}}});
}
void ScheduleFreeAdamWOptions::Check(OptionProblems& problems) const {
  if (betas[0] == 0) problems.Add("betas[0] must be above 0: x is y + (1 - 1 / beta) (z - y)");
}

std::vector<OptionField<ScheduleFreeSgdOptions>> ScheduleFreeSgdOptions::Fields() {
  using O = ScheduleFreeSgdOptions;
  using enum OptionCheck;
  return JoinFields<O>({{{"lr", &O::lr, kAtLeastZero, "learning rate"},
                         {"momentum", &O::momentum, kDecay, "how near y is to x; above 0"},
                         {"weight_decay", &O::weight_decay, kAtLeastZero, "taken at y"}},
                        AverageFields<O>()});
}
void ScheduleFreeSgdOptions::Check(OptionProblems& problems) const {
  if (momentum == 0) problems.Add("momentum must be above 0: x is y + (1 - 1 / momentum) (z - y)");
}

template <typename O>
void ScheduleFreeRule<O>::States(const typename RuleOf<O>::Subject& of,
                                 std::vector<StateSpec>& specs) const {
  specs = {{"z"}};
  if constexpr (kIsAdam<O>) {
    specs.push_back({"exp_avg_sq"});
    if (of.options.inner_momentum > 0) specs.push_back({"exp_avg"});
  }
}

template <typename O>
absl::Status ScheduleFreeRule<O>::CheckGroupState(const GroupState& state,
                                                  const OptionMap& /*options*/) const {
  for (const auto& [key, values] : state) {
    if (std::ranges::find(kNumbers, key) == std::end(kNumbers)) {
      return InvalidArgument("group state \"", key, "\" is not one of ", kName, "'s");
    }
    if (values.size() != 1) {
      return InvalidArgument("group state \"", key, "\" has ", values.size(),
                             " numbers, expected 1");
    }
  }
  return absl::OkStatus();
}

template <typename O>
ScheduleFreeRule<O>::GroupStep ScheduleFreeRule<O>::Next(int group) const {
  const O& o = this->options(group);
  const GroupState& now = this->store().group_state(group);
  const double k = NumberOf(now, "k") + 1;
  const auto warmup = static_cast<double>(o.warmup_steps);
  const double lr = k < warmup ? o.lr * (k / warmup) : o.lr;
  const double lr_max = std::max(NumberOf(now, "lr_max"), lr);
  const double weight = std::pow(k, o.r) * std::pow(lr_max, o.weight_lr_power);
  return {k, lr, lr_max, weight, NumberOf(now, "weight_sum") + weight};
}

template <typename O>
ScheduleFreeSettings ScheduleFreeRule<O>::Settings(int group) const {
  const O& o = this->options(group);
  const GroupStep next = Next(group);
  const double weight = next.weight_sum == 0 ? 0 : next.weight / next.weight_sum;
  ScheduleFreeSettings settings{.lr = next.lr,
                                .decay = o.weight_decay,
                                .weight = weight,
                                .move = next.lr * (1 - o.beta() * (1 - weight)),
                                .first = false};
  if constexpr (kIsAdam<O>) {
    settings.beta2 = o.betas[1];
    settings.eps = o.eps;
    settings.root_scale = 1 / std::sqrt(1 - std::pow(o.betas[1], next.k));
    settings.beta3 = o.inner_momentum;
    settings.inner_scale = 1 / (1 - std::pow(o.inner_momentum, next.k));
  }
  return settings;
}

template <typename O>
void ScheduleFreeRule<O>::Update(const RuleStep& step) {
  const ScheduleFreeSettings common = Settings(step.group);
  const auto settings = [&](const ActiveParam& param) {
    ScheduleFreeSettings own = common;
    own.first = param.view->step() == 1;
    return own;
  };
  if constexpr (!kIsAdam<O>) {
    RunElements(&OptimKernels::schedule_free_sgd, step.params, step.decision, settings, {"z"});
  } else if (this->options(step.group).inner_momentum == 0) {
    RunElements(&OptimKernels::schedule_free_adam, step.params, step.decision, settings,
                {"z", "exp_avg_sq"});
  } else {
    RunElements(&OptimKernels::schedule_free_inner, step.params, step.decision, settings,
                {"z", "exp_avg_sq", "exp_avg"});
  }
}

template <typename O>
void ScheduleFreeRule<O>::On(RuleEvent event) {
  if (event == RuleEvent::kUpdated) {
    before_.clear();
    for (int group = 0; group < this->num_groups(); ++group) {
      const GroupStep next = Next(group);
      before_.push_back(std::exchange(this->store().mutable_group_state(group),
                                      {{"k", {next.k}},
                                       {"lr_max", {next.lr_max}},
                                       {"scheduled_lr", {next.lr}},
                                       {"weight_sum", {next.weight_sum}}}));
    }
  } else if (event == RuleEvent::kRevoked) {
    for (int group = 0; group < this->num_groups(); ++group) {
      this->store().mutable_group_state(group) = std::move(before_[static_cast<size_t>(group)]);
    }
    before_.clear();
  }
}

template <typename O>
Tensor ScheduleFreeRule<O>::Averaged(ParamView& view, int group) const {
  const Tensor z = view.state("z");
  if (!z.defined() || view.step() == 0) return {};  // x, y and z are one
  const Tensor x = view.master().Clone(MemoryCategory::kWorkspace);
  view.DropTemporaries();
  const double ahead = 1 - 1 / this->options(group).beta();
  ops::Accumulate(x, z, ahead, 1 - ahead);
  return x;
}

template class OptimizerOf<ScheduleFreeRule<ScheduleFreeAdamWOptions>>;
template class OptimizerOf<ScheduleFreeRule<ScheduleFreeSgdOptions>>;

}  // namespace apogee::optim
