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

std::vector<std::string> OneCycleOptions::Problems() const {
  ScheduleProblems problems;
  problems.Steps("total_steps", total_steps, 2);
  problems.Positive("pct_start", pct_start);
  problems.Positive("div_factor", div_factor);
  problems.Positive("final_div_factor", final_div_factor);
  problems.Decay("base_momentum", base_momentum);
  problems.Decay("max_momentum", max_momentum);
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
  return problems.list();
}

std::vector<OptionField<OneCycleOptions>> OneCycleOptions::Fields() {
  return {{"total_steps", &OneCycleOptions::total_steps},
          {"pct_start", &OneCycleOptions::pct_start},
          {"anneal_strategy", &OneCycleOptions::anneal_strategy},
          {"cycle_momentum", &OneCycleOptions::cycle_momentum},
          {"base_momentum", &OneCycleOptions::base_momentum},
          {"max_momentum", &OneCycleOptions::max_momentum},
          {"div_factor", &OneCycleOptions::div_factor},
          {"final_div_factor", &OneCycleOptions::final_div_factor},
          {"three_phase", &OneCycleOptions::three_phase}};
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
