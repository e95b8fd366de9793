// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/schedule/lr_schedule_registry.h"

namespace apogee::optim {

LrScheduleRegistry::LrScheduleRegistry() {
  Add("constant", &ConstantSchedule, ConstantOptions{});
  Add("cosine", &CosineSchedule, CosineOptions{});
  Add("cosine_restarts", &CosineRestartsSchedule, CosineRestartsOptions{});
  Add("eden", &EdenSchedule, EdenOptions{});
  Add("exponential", &ExponentialSchedule, ExponentialOptions{});
  Add("flat_cosine", &FlatCosineSchedule, FlatCosineOptions{});
  Add("linear", &LinearSchedule, LinearOptions{});
  Add("multistep", &MultiStepSchedule, MultiStepOptions{});
  Add("one_cycle", &OneCycleSchedule, OneCycleOptions{});
  Add("polynomial", &PolynomialSchedule, PolynomialOptions{});
  Add("step", &StepDecaySchedule, StepDecayOptions{});
}

absl::StatusOr<LrSchedule> LrScheduleRegistry::Make(const std::string& name,
                                                    const OptionMap& options) const {
  APOGEE_ASSIGN_OR_RETURN(const Entry* entry, entries_.Find(name));
  return entry->make("schedule " + name, options);
}

absl::StatusOr<OptionMap> LrScheduleRegistry::Defaults(const std::string& name) const {
  APOGEE_ASSIGN_OR_RETURN(const Entry* entry, entries_.Find(name));
  return entry->defaults;
}

const LrScheduleRegistry& BuiltInLrSchedules() {
  static const auto& registry = *new LrScheduleRegistry;
  return registry;
}

}  // namespace apogee::optim
