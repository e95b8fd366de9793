// SPDX-License-Identifier: Apache-2.0

// Checks of schedule options. Private to optim/schedule/lr_schedule.cc and
// optim/schedule/one_cycle.cc.
#ifndef APOGEE_OPTIM_SCHEDULE_CHECK_SCHEDULE_H_
#define APOGEE_OPTIM_SCHEDULE_CHECK_SCHEDULE_H_

#include <string>

#include "apogee/optim/check_options.h"

namespace apogee::optim {

class ScheduleProblems : public OptionProblems {
 public:
  void Steps(const char* name, int64_t value, int64_t least) {
    if (value < least) {
      Add(internal::Concat(name, " is ", value, ", must be at least ", least));
    }
  }
  // Checks both counts; at least one step must be left after the warm-up.
  static ScheduleProblems TotalAndWarmup(int64_t total_steps, int64_t warmup_steps) {
    ScheduleProblems problems;
    problems.Steps("total_steps", total_steps, 1);
    problems.Steps("warmup_steps", warmup_steps, 0);
    if (total_steps >= 1 && warmup_steps >= total_steps) {
      problems.Add(internal::Concat("warmup_steps is ", warmup_steps,
                                    ", must be below total_steps (", total_steps, ")"));
    }
    return problems;
  }
};

template <typename Options>
void CheckSchedule(const char* name, const Options& options) {
  const std::vector<std::string> problems = options.Problems();
  if (problems.empty()) return;
  std::string text = internal::Concat("schedule ", name, ": ");
  for (size_t i = 0; i < problems.size(); ++i) text += (i > 0 ? "; " : "") + problems[i];
  Throw(text);
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_SCHEDULE_CHECK_SCHEDULE_H_
