// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/schedule/lr_schedule_registry.h"

#include <map>

namespace apogee::optim {
namespace {

struct Entry {
  std::function<absl::StatusOr<LrSchedule>(const std::string& what, const OptionMap&)> make;
  OptionMap defaults;
};

template <typename Options>
Entry MakeEntry(LrSchedule (*factory)(const Options&)) {
  const auto make = [factory](const std::string& what,
                              const OptionMap& text) -> absl::StatusOr<LrSchedule> {
    Options options;
    APOGEE_RETURN_IF_ERROR(SetOptions(text, what, options));
    try {
      return factory(options);
    } catch (const Error& error) {
      return InvalidArgument(error.what());
    }
  };
  return {make, GetOptions(Options{})};
}

const std::map<std::string, Entry>& Registry() {
  static const auto& registry = *new std::map<std::string, Entry>{
      {"constant", MakeEntry(&ConstantSchedule)},
      {"cosine", MakeEntry(&CosineSchedule)},
      {"cosine_restarts", MakeEntry(&CosineRestartsSchedule)},
      {"eden", MakeEntry(&EdenSchedule)},
      {"exponential", MakeEntry(&ExponentialSchedule)},
      {"flat_cosine", MakeEntry(&FlatCosineSchedule)},
      {"linear", MakeEntry(&LinearSchedule)},
      {"multistep", MakeEntry(&MultiStepSchedule)},
      {"one_cycle", MakeEntry(&OneCycleSchedule)},
      {"polynomial", MakeEntry(&PolynomialSchedule)},
      {"step", MakeEntry(&StepDecaySchedule)},
  };
  return registry;
}

absl::StatusOr<const Entry*> Find(const std::string& name) {
  const auto found = Registry().find(name);
  if (found == Registry().end()) return NotFound(UnknownName("schedule", name, LrScheduleNames()));
  return &found->second;
}

}  // namespace

absl::StatusOr<LrSchedule> MakeLrSchedule(const std::string& name, const OptionMap& options) {
  APOGEE_ASSIGN_OR_RETURN(const Entry* entry, Find(name));
  return entry->make("schedule " + name, options);
}

std::vector<std::string> LrScheduleNames() {
  std::vector<std::string> names;
  for (const auto& [name, entry] : Registry()) names.push_back(name);
  return names;
}

absl::StatusOr<OptionMap> LrScheduleDefaults(const std::string& name) {
  APOGEE_ASSIGN_OR_RETURN(const Entry* entry, Find(name));
  return entry->defaults;
}

}  // namespace apogee::optim
