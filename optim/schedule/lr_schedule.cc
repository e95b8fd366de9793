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

}  // namespace

std::vector<std::string> ConstantOptions::Problems() const {
  ScheduleProblems problems;
  problems.Steps("warmup_steps", warmup_steps, 0);
  return problems.list();
}
std::vector<OptionField<ConstantOptions>> ConstantOptions::Fields() {
  return {{"warmup_steps", &ConstantOptions::warmup_steps}};
}
LrSchedule ConstantSchedule(const ConstantOptions& options) {
  CheckSchedule("constant", options);
  return WithWarmup(options.warmup_steps, [](ScheduleTime, double base_lr) { return base_lr; });
}

std::vector<std::string> LinearOptions::Problems() const {
  return ScheduleProblems::TotalAndWarmup(total_steps, warmup_steps).list();
}
std::vector<OptionField<LinearOptions>> LinearOptions::Fields() {
  return {{"total_steps", &LinearOptions::total_steps},
          {"warmup_steps", &LinearOptions::warmup_steps}};
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

std::vector<std::string> CosineOptions::Problems() const {
  ScheduleProblems problems = ScheduleProblems::TotalAndWarmup(total_steps, warmup_steps);
  problems.Finite("eta_min", eta_min);
  return problems.list();
}
std::vector<OptionField<CosineOptions>> CosineOptions::Fields() {
  return {{"total_steps", &CosineOptions::total_steps},
          {"warmup_steps", &CosineOptions::warmup_steps},
          {"eta_min", &CosineOptions::eta_min}};
}
LrSchedule CosineSchedule(const CosineOptions& options) {
  CheckSchedule("cosine", options);
  const auto steps = static_cast<double>(options.total_steps - options.warmup_steps);
  return WithWarmup(options.warmup_steps,
                    [steps, eta_min = options.eta_min](ScheduleTime time, double base_lr) {
                      return Cosine(base_lr, eta_min, static_cast<double>(time.step) / steps);
                    });
}

std::vector<std::string> FlatCosineOptions::Problems() const {
  ScheduleProblems problems = ScheduleProblems::TotalAndWarmup(total_steps, warmup_steps);
  problems.Decay("pct_start", pct_start);
  problems.Finite("eta_min", eta_min);
  return problems.list();
}
std::vector<OptionField<FlatCosineOptions>> FlatCosineOptions::Fields() {
  return {{"total_steps", &FlatCosineOptions::total_steps},
          {"warmup_steps", &FlatCosineOptions::warmup_steps},
          {"pct_start", &FlatCosineOptions::pct_start},
          {"eta_min", &FlatCosineOptions::eta_min}};
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

std::vector<std::string> MultiStepOptions::Problems() const {
  ScheduleProblems problems;
  problems.Steps("warmup_steps", warmup_steps, 0);
  problems.Positive("gamma", gamma);
  for (const int64_t milestone : milestones) problems.Steps("a milestone", milestone, 0);
  return problems.list();
}
std::vector<OptionField<MultiStepOptions>> MultiStepOptions::Fields() {
  return {{"milestones", &MultiStepOptions::milestones},
          {"gamma", &MultiStepOptions::gamma},
          {"warmup_steps", &MultiStepOptions::warmup_steps}};
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

std::vector<std::string> PolynomialOptions::Problems() const {
  ScheduleProblems problems = ScheduleProblems::TotalAndWarmup(total_steps, warmup_steps);
  problems.Finite("end_lr", end_lr);
  problems.Positive("power", power);
  return problems.list();
}
std::vector<OptionField<PolynomialOptions>> PolynomialOptions::Fields() {
  return {{"total_steps", &PolynomialOptions::total_steps},
          {"warmup_steps", &PolynomialOptions::warmup_steps},
          {"end_lr", &PolynomialOptions::end_lr},
          {"power", &PolynomialOptions::power}};
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

std::vector<std::string> StepDecayOptions::Problems() const {
  ScheduleProblems problems;
  problems.Steps("step_size", step_size, 1);
  problems.Positive("gamma", gamma);
  return problems.list();
}
std::vector<OptionField<StepDecayOptions>> StepDecayOptions::Fields() {
  return {{"step_size", &StepDecayOptions::step_size}, {"gamma", &StepDecayOptions::gamma}};
}
LrSchedule StepDecaySchedule(const StepDecayOptions& options) {
  CheckSchedule("step", options);
  return {[options](ScheduleTime time, double base_lr) {
    return base_lr * std::pow(options.gamma, static_cast<double>(time.step / options.step_size));
  }};
}

std::vector<std::string> ExponentialOptions::Problems() const {
  ScheduleProblems problems;
  problems.Positive("gamma", gamma);
  return problems.list();
}
std::vector<OptionField<ExponentialOptions>> ExponentialOptions::Fields() {
  return {{"gamma", &ExponentialOptions::gamma}};
}
LrSchedule ExponentialSchedule(const ExponentialOptions& options) {
  CheckSchedule("exponential", options);
  return {[gamma = options.gamma](ScheduleTime time, double base_lr) {
    return base_lr * std::pow(gamma, static_cast<double>(time.step));
  }};
}

std::vector<std::string> CosineRestartsOptions::Problems() const {
  ScheduleProblems problems;
  problems.Steps("t_0", t_0, 1);
  problems.Steps("t_mult", t_mult, 1);
  problems.Finite("eta_min", eta_min);
  return problems.list();
}
std::vector<OptionField<CosineRestartsOptions>> CosineRestartsOptions::Fields() {
  return {{"t_0", &CosineRestartsOptions::t_0},
          {"t_mult", &CosineRestartsOptions::t_mult},
          {"eta_min", &CosineRestartsOptions::eta_min}};
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

std::vector<std::string> EdenOptions::Problems() const {
  ScheduleProblems problems;
  problems.Positive("lr_batches", lr_batches);
  problems.Positive("lr_epochs", lr_epochs);
  problems.AtLeastZero("warmup_batches", warmup_batches);
  problems.AtLeastZero("warmup_start", warmup_start);
  return problems.list();
}
std::vector<OptionField<EdenOptions>> EdenOptions::Fields() {
  return {{"lr_batches", &EdenOptions::lr_batches},
          {"lr_epochs", &EdenOptions::lr_epochs},
          {"warmup_batches", &EdenOptions::warmup_batches},
          {"warmup_start", &EdenOptions::warmup_start}};
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
