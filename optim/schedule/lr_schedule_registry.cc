// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/schedule/lr_schedule_registry.h"

#include <utility>

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

void LrScheduleRegistry::AddEntry(const std::string& name, Entry entry) {
  APOGEE_CHECK(entries_.emplace(name, std::move(entry)).second, "LrScheduleRegistry: the name \"",
               name, "\" is taken; give your schedule another");
}

absl::StatusOr<const LrScheduleRegistry::Entry*> LrScheduleRegistry::Find(
    const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return NotFound(UnknownName("schedule", name, names()));
  return &found->second;
}

absl::StatusOr<LrSchedule> LrScheduleRegistry::Make(const std::string& name,
                                                    const OptionMap& options) const {
  APOGEE_ASSIGN_OR_RETURN(const Entry* entry, Find(name));
  return entry->make("schedule " + name, options);
}

std::vector<std::string> LrScheduleRegistry::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

absl::StatusOr<OptionMap> LrScheduleRegistry::Defaults(const std::string& name) const {
  APOGEE_ASSIGN_OR_RETURN(const Entry* entry, Find(name));
  return entry->defaults;
}

const LrScheduleRegistry& BuiltInLrSchedules() {
  static const auto& registry = *new LrScheduleRegistry;
  return registry;
}

}  // namespace apogee::optim
