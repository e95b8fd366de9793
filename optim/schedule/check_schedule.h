// SPDX-License-Identifier: Apache-2.0

// Checks of schedule options. Private to optim/schedule/lr_schedule.cc and
// optim/schedule/one_cycle.cc.
#ifndef APOGEE_OPTIM_SCHEDULE_CHECK_SCHEDULE_H_
#define APOGEE_OPTIM_SCHEDULE_CHECK_SCHEDULE_H_

#include <string>
#include <vector>

#include "apogee/core/text/text.h"
#include "apogee/optim/options.h"

namespace apogee::optim {

template <typename Options>
void CheckSchedule(const char* name, const Options& options) {
  const std::vector<std::string> problems = ProblemsOf(options);
  APOGEE_CHECK(problems.empty(), "schedule ", name, ": ", JoinTexts(problems));
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_SCHEDULE_CHECK_SCHEDULE_H_
