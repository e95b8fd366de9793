// SPDX-License-Identifier: Apache-2.0

// Schedules by name, with options as text, for programs and configuration files.
//
//   auto schedule = optim::MakeLrSchedule("cosine", {{"total_steps", "1000"}});
//   if (!schedule.ok()) ...       // unknown schedule "cosin" (did you mean "cosine"?); known: ...
#ifndef APOGEE_OPTIM_SCHEDULE_LR_SCHEDULE_REGISTRY_H_
#define APOGEE_OPTIM_SCHEDULE_LR_SCHEDULE_REGISTRY_H_

#include <string>
#include <vector>

#include "apogee/optim/schedule/lr_schedule.h"

namespace apogee::optim {

// Returns an error for an unknown name, an unknown or malformed option, or an invalid value.
absl::StatusOr<LrSchedule> MakeLrSchedule(const std::string& name, const OptionMap& options = {});
// All names, sorted.
std::vector<std::string> LrScheduleNames();
// The options of a schedule with their defaults.
absl::StatusOr<OptionMap> LrScheduleDefaults(const std::string& name);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_SCHEDULE_LR_SCHEDULE_REGISTRY_H_
