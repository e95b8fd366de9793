// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/schedule/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "apogee/optim/schedule/check_schedule.h"

namespace apogee::optim {
namespace {

using LrFunction = std::function<double(ScheduleTime, double)>;

double Cosine(double from, double to, double share) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * share)) / 2;
}

// `after` starts from its own step 0 once the rate has reached base_lr.
LrSchedule WithWarmup(int64_t warmup_steps, LrFunction after) {
  if (warmup_steps == 0) return {std::move(after)};
  return {[warmup_steps, after = std::move(after)](ScheduleTime time, double base_lr) {
    if (time.step < warmup_steps) {
      return static_cast<double>(time.step + 1) / static_cast<double>(warmup_steps) * base_lr;
    }
    return after({time.step - warmup_steps, time.epoch}, base_lr);
  }};
}

// At least one step must be left after the warm-up.
void CheckWarmup(int64_t total_steps, int64_t warmup_steps, OptionProblems& problems) {
  if (total_steps < 1 || warmup_steps < total_steps) return;
  problems.Add(internal::Concat("warmup_steps is ", warmup_steps, ", must be below total_steps (",
                                total_steps, ")"));
}

}  // namespace

std::vector<OptionField<ConstantOptions>> ConstantOptions::Fields() {
  using O = ConstantOptions;
  using enum OptionCheck;
  return {{"warmup_steps", &O::warmup_steps, kAtLeastZero, "steps of a linear rise"}};
}
LrSchedule ConstantSchedule(const ConstantOptions& options) {
  CheckSchedule("constant", options);
  return WithWarmup(options.warmup_steps, [](ScheduleTime, double base_lr) { return base_lr; });
}

std::vector<OptionField<LinearOptions>> LinearOptions::Fields() {
  using O = LinearOptions;
  using enum OptionCheck;
  return {{"total_steps", &O::total_steps, kAtLeastOne, "steps until 0"},
          {"warmup_steps", &O::warmup_steps, kAtLeastZero, "steps of a linear rise"}};
}
void LinearOptions::Check(OptionProblems& problems) const {
  CheckWarmup(total_steps, warmup_steps, problems);
}
LrSchedule LinearSchedule(const LinearOptions& options) {
  CheckSchedule("linear", options);
  const auto total = static_cast<double>(options.total_steps);
  const auto warmup = static_cast<double>(options.warmup_steps);
  return {[total, warmup](ScheduleTime time, double base_lr) {
    const auto step = static_cast<double>(time.step);
    if (step < warmup) return (step + 1) / (warmup + 1) * base_lr;
    return (total - step) / (total - warmup) * base_lr;
  }};
}

std::vector<OptionField<CosineOptions>> CosineOptions::Fields() {
  using O = CosineOptions;
  using enum OptionCheck;
  return {{"total_steps", &O::total_steps, kAtLeastOne, "steps until eta_min"},
          {"warmup_steps", &O::warmup_steps, kAtLeastZero, "steps of a linear rise"},
          {"eta_min", &O::eta_min, kFinite, "the last rate"}};
}
void CosineOptions::Check(OptionProblems& problems) const {
  CheckWarmup(total_steps, warmup_steps, problems);
}
LrSchedule CosineSchedule(const CosineOptions& options) {
  CheckSchedule("cosine", options);
  const auto steps = static_cast<double>(options.total_steps - options.warmup_steps);
  return WithWarmup(options.warmup_steps,
                    [steps, eta_min = options.eta_min](ScheduleTime time, double base_lr) {
                      return Cosine(base_lr, eta_min, static_cast<double>(time.step) / steps);
                    });
}

std::vector<OptionField<FlatCosineOptions>> FlatCosineOptions::Fields() {
  using O = FlatCosineOptions;
  using enum OptionCheck;
  return {{"total_steps", &O::total_steps, kAtLeastOne, "steps until eta_min"},
          {"warmup_steps", &O::warmup_steps, kAtLeastZero, "steps of a linear rise"},
          {"pct_start", &O::pct_start, kDecay, "fraction of the steps at base_lr"},
          {"eta_min", &O::eta_min, kFinite, "the last rate"}};
}
void FlatCosineOptions::Check(OptionProblems& problems) const {
  CheckWarmup(total_steps, warmup_steps, problems);
}
LrSchedule FlatCosineSchedule(const FlatCosineOptions& options) {
  CheckSchedule("flat_cosine", options);
  const int64_t steps = options.total_steps - options.warmup_steps;
  const auto flat = static_cast<int64_t>(static_cast<double>(steps) * options.pct_start);
  return WithWarmup(options.warmup_steps, [steps, flat, eta_min = options.eta_min](
                                              ScheduleTime time, double base_lr) {
    if (time.step < flat) return base_lr;
    const double share = static_cast<double>(time.step - flat) / static_cast<double>(steps - flat);
    return Cosine(base_lr, eta_min, share);
  });
}

std::vector<OptionField<MultiStepOptions>> MultiStepOptions::Fields() {
  using O = MultiStepOptions;
  using enum OptionCheck;
  return {{"milestones", &O::milestones, kAtLeastZero, "steps at which the rate falls"},
          {"gamma", &O::gamma, kPositive, "factor at a milestone"},
          {"warmup_steps", &O::warmup_steps, kAtLeastZero, "steps of a linear rise"}};
}
LrSchedule MultiStepSchedule(const MultiStepOptions& options) {
  CheckSchedule("multistep", options);
  std::vector<int64_t> milestones;
  for (const int64_t milestone : options.milestones) {
    if (milestone >= options.warmup_steps) milestones.push_back(milestone - options.warmup_steps);
  }
  return WithWarmup(options.warmup_steps, [milestones, gamma = options.gamma](ScheduleTime time,
                                                                              double base_lr) {
    const auto reached = std::count_if(milestones.begin(), milestones.end(),
                                       [&](int64_t milestone) { return time.step >= milestone; });
    return base_lr * std::pow(gamma, static_cast<double>(reached));
  });
}

std::vector<OptionField<PolynomialOptions>> PolynomialOptions::Fields() {
  using O = PolynomialOptions;
  using enum OptionCheck;
  return {{"total_steps", &O::total_steps, kAtLeastOne, "steps until end_lr"},
          {"warmup_steps", &O::warmup_steps, kAtLeastZero, "steps of a linear rise"},
          {"end_lr", &O::end_lr, kFinite, "the last rate"},
          {"power", &O::power, kPositive, "of the fall"}};
}
void PolynomialOptions::Check(OptionProblems& problems) const {
  CheckWarmup(total_steps, warmup_steps, problems);
}
LrSchedule PolynomialSchedule(const PolynomialOptions& options) {
  CheckSchedule("polynomial", options);
  const auto steps = static_cast<double>(options.total_steps - options.warmup_steps);
  return WithWarmup(options.warmup_steps, [steps, end_lr = options.end_lr, power = options.power](
                                              ScheduleTime time, double base_lr) {
    const double share = std::min(static_cast<double>(time.step), steps) / steps;
    return (base_lr - end_lr) * std::pow(1 - share, power) + end_lr;
  });
}

std::vector<OptionField<StepDecayOptions>> StepDecayOptions::Fields() {
  using O = StepDecayOptions;
  using enum OptionCheck;
  return {{"step_size", &O::step_size, kAtLeastOne, "steps between falls"},
          {"gamma", &O::gamma, kPositive, "factor at a fall"}};
}
LrSchedule StepDecaySchedule(const StepDecayOptions& options) {
  CheckSchedule("step", options);
  return {[options](ScheduleTime time, double base_lr) {
    return base_lr * std::pow(options.gamma, static_cast<double>(time.step / options.step_size));
  }};
}

std::vector<OptionField<ExponentialOptions>> ExponentialOptions::Fields() {
  using O = ExponentialOptions;
  using enum OptionCheck;
  return {{"gamma", &O::gamma, kPositive, "factor per step"}};
}
LrSchedule ExponentialSchedule(const ExponentialOptions& options) {
  CheckSchedule("exponential", options);
  return {[gamma = options.gamma](ScheduleTime time, double base_lr) {
    return base_lr * std::pow(gamma, static_cast<double>(time.step));
  }};
}

std::vector<OptionField<CosineRestartsOptions>> CosineRestartsOptions::Fields() {
  using O = CosineRestartsOptions;
  using enum OptionCheck;
  return {{"t_0", &O::t_0, kAtLeastOne, "steps of the first period"},
          {"t_mult", &O::t_mult, kAtLeastOne, "factor of the next period"},
          {"eta_min", &O::eta_min, kFinite, "the last rate of a period"}};
}
LrSchedule CosineRestartsSchedule(const CosineRestartsOptions& options) {
  CheckSchedule("cosine_restarts", options);
  return {[options](ScheduleTime time, double base_lr) {
    int64_t step = time.step;
    int64_t period = options.t_0;
    if (options.t_mult == 1) step %= period;
    while (step >= period) {
      step -= period;
      period *= options.t_mult;
    }
    return Cosine(base_lr, options.eta_min,
                  static_cast<double>(step) / static_cast<double>(period));
  }};
}

std::vector<OptionField<EdenOptions>> EdenOptions::Fields() {
  using O = EdenOptions;
  using enum OptionCheck;
  return {{"lr_batches", &O::lr_batches, kPositive, "batches until the rate falls"},
          {"lr_epochs", &O::lr_epochs, kPositive, "epochs until the rate falls"},
          {"warmup_batches", &O::warmup_batches, kAtLeastZero, "steps of a linear rise"},
          {"warmup_start", &O::warmup_start, kAtLeastZero, "factor at its start"}};
}
LrSchedule EdenSchedule(const EdenOptions& options) {
  CheckSchedule("eden", options);
  return {[o = options](ScheduleTime time, double base_lr) {
    const auto decay = [](double at, double scale) {
      return std::pow((at * at + scale * scale) / (scale * scale), -0.25);
    };
    const auto step = static_cast<double>(time.step);
    const double warmup = step >= o.warmup_batches
                              ? 1.0
                              : o.warmup_start + (1 - o.warmup_start) * (step / o.warmup_batches);
    return base_lr * decay(step, o.lr_batches) *
           decay(static_cast<double>(time.epoch), o.lr_epochs) * warmup;
  }};
}

}  // namespace apogee::optim
