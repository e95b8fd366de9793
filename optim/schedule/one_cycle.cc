// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <numbers>

#include "apogee/optim/schedule/check_schedule.h"
#include "apogee/optim/schedule/lr_schedule.h"

namespace apogee::optim {
namespace {

// A phase: its end in steps, and rate and momentum at its two ends. Rates are factors of the
// highest rate.
struct Phase {
  double end;
  double lr_from, lr_to;
  double momentum_from, momentum_to;
};

std::vector<Phase> PhasesOf(const OneCycleOptions& o) {
  const auto total = static_cast<double>(o.total_steps);
  const double first = 1 / o.div_factor;
  const double last = first / o.final_div_factor;
  const Phase up{o.pct_start * total - 1, first, 1, o.max_momentum, o.base_momentum};
  if (!o.three_phase) return {up, {total - 1, 1, last, o.base_momentum, o.max_momentum}};
  return {up,
          {2 * o.pct_start * total - 2, 1, first, o.base_momentum, o.max_momentum},
          {total - 1, first, last, o.max_momentum, o.max_momentum}};
}

struct Place {
  const Phase* phase;
  double share;  // fraction of the phase that has passed
};

Place PlaceOf(const std::vector<Phase>& phases, int64_t at) {
  const double step = std::min(static_cast<double>(at), phases.back().end);
  double begin = 0;
  for (const Phase& phase : phases) {
    if (step <= phase.end || &phase == &phases.back()) {
      return {&phase, (step - begin) / (phase.end - begin)};
    }
    begin = phase.end;
  }
  return {&phases.back(), 1};
}

double Anneal(bool linear, double from, double to, double share) {
  if (linear) return from + (to - from) * share;
  return to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * share));
}

}  // namespace

std::vector<OptionField<OneCycleOptions>> OneCycleOptions::Fields() {
  using O = OneCycleOptions;
  using enum OptionCheck;
  return {{"total_steps", &O::total_steps, {}, "steps of the cycle"},
          {"pct_start", &O::pct_start, kPositive, "fraction of the steps that rises"},
          {"anneal_strategy", &O::anneal_strategy, {}, "cos or linear"},
          {"cycle_momentum", &O::cycle_momentum, {}, "momentum moves the other way"},
          {"base_momentum", &O::base_momentum, kDecay, "its lower bound"},
          {"max_momentum", &O::max_momentum, kDecay, "its upper bound"},
          {"div_factor", &O::div_factor, kPositive, "highest over first rate"},
          {"final_div_factor", &O::final_div_factor, kPositive, "first over last rate"},
          {"three_phase", &O::three_phase, {}, "falls to the first rate, then to the last"}};
}

void OneCycleOptions::Check(OptionProblems& problems) const {
  if (total_steps < 2) {
    problems.Add(internal::Concat("total_steps is ", total_steps, ", must be at least 2"));
  }
  if (anneal_strategy != "cos" && anneal_strategy != "linear") {
    problems.Add(internal::Concat("anneal_strategy is \"", anneal_strategy,
                                  "\", must be \"cos\" or \"linear\""));
  }
  // Every phase must have a length above 0. The up phase ends at pct_start * total_steps - 1.
  const double limit = three_phase ? 0.5 : 1;
  if (pct_start >= limit) {
    problems.Add(internal::Concat("pct_start is ", pct_start, ", must be below ", limit));
  } else if (pct_start * static_cast<double>(total_steps) <= 1) {
    problems.Add("pct_start * total_steps must be above 1, so that the rise has a step");
  }
}

LrSchedule OneCycleSchedule(const OneCycleOptions& options) {
  CheckSchedule("one_cycle", options);
  const std::vector<Phase> phases = PhasesOf(options);
  const bool linear = options.anneal_strategy == "linear";
  LrSchedule schedule;
  schedule.lr = [phases, linear](ScheduleTime time, double base_lr) {
    const auto [phase, share] = PlaceOf(phases, time.step);
    return Anneal(linear, phase->lr_from * base_lr, phase->lr_to * base_lr, share);
  };
  if (options.cycle_momentum) {
    schedule.momentum = [phases, linear](ScheduleTime time) {
      const auto [phase, share] = PlaceOf(phases, time.step);
      return Anneal(linear, phase->momentum_from, phase->momentum_to, share);
    };
  }
  return schedule;
}

}  // namespace apogee::optim
