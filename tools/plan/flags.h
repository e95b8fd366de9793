// SPDX-License-Identifier: Apache-2.0

// The flags of `apogee plan`, and what they become.
//
//   APOGEE_ASSIGN_OR_RETURN(const plan::TrainingSetup setup, SetupOf(flags));
//   APOGEE_ASSIGN_OR_RETURN(options.machine, MachineOf(flags, setup));
#ifndef APOGEE_TOOLS_PLAN_FLAGS_H_
#define APOGEE_TOOLS_PLAN_FLAGS_H_

#include <optional>
#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/plan/machine/machine.h"
#include "apogee/plan/plan.h"

namespace apogee::tools {

struct PlanFlags {
  std::string model;
  std::vector<std::string> fields;  // KEY=VALUE of the config
  std::string memory;
  std::string precision = "f32";
  std::vector<std::string> optimizer_options;
  int64_t lora_rank = 0;  // 0: the model is trained
  std::vector<std::string> lora_targets = {"all-linear"};
  std::string quantize = "none";
  plan::ModelOptions model_options;
  plan::TrainingSetup setup;
  plan::PlanOptions options;
  // Measured rates.
  bool measure = false;
  std::string rates;
  // A declared machine; quantities with units.
  std::string flops, memory_bandwidth, link, local_link;
  std::string latency = "5us", local_latency = "3us", kernel_time = "3us";
  int ranks_per_machine = 8;
  std::vector<int> scale;
  std::string rank_mttf, save_time, restart_time;
  bool json = false;
};

absl::StatusOr<plan::TrainingSetup> SetupOf(const PlanFlags& flags);
// None if nothing has been measured or declared. With flags.measure it measures, about 40 s.
// `num_ranks`: of the largest world.
absl::StatusOr<std::optional<plan::Machine>> MachineOf(const PlanFlags& flags,
                                                       const plan::TrainingSetup& setup,
                                                       int num_ranks);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_PLAN_FLAGS_H_
