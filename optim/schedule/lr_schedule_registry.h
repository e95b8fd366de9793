// SPDX-License-Identifier: Apache-2.0

// Schedules by name, with options as text, for programs and configuration files.
//
//   auto schedule = optim::MakeLrSchedule("cosine", {{"total_steps", "1000"}});
//   if (!schedule.ok()) ...       // unknown schedule "cosin" (did you mean "cosine"?); known: ...
//
//   optim::LrScheduleRegistry registry;                      // the library's schedules ...
//   registry.Add("sawtooth", &SawtoothSchedule, SawtoothOptions{});    // ... and your own
//   schedule = optim::MakeLrSchedule("sawtooth", {{"period", "10"}}, registry);
//
// Not a collective: ranks that train together make the same schedule with the same options.
#ifndef APOGEE_OPTIM_SCHEDULE_LR_SCHEDULE_REGISTRY_H_
#define APOGEE_OPTIM_SCHEDULE_LR_SCHEDULE_REGISTRY_H_

#include <functional>
#include <string>
#include <vector>

#include "apogee/core/text/name_table.h"
#include "apogee/optim/schedule/lr_schedule.h"

namespace apogee::optim {

class LrScheduleRegistry {
 public:
  // Has every schedule of the library.
  LrScheduleRegistry();

  // Adds a schedule: `make(const Options&)` returns an LrSchedule or throws Error, and Options has
  // Fields() (options.h). Throws Error if the name is taken.
  template <typename MakeSchedule, typename Options>
  void Add(const std::string& name, const MakeSchedule& make, const Options& defaults);

  // Returns an error for an unknown name, an unknown or malformed option, or an invalid value.
  absl::StatusOr<LrSchedule> Make(const std::string& name, const OptionMap& options = {}) const;
  // All names, sorted.
  std::vector<std::string> names() const { return entries_.names(); }
  // The options of a schedule with their defaults. An error for an unknown name.
  absl::StatusOr<OptionMap> Defaults(const std::string& name) const;

 private:
  struct Entry {
    std::function<absl::StatusOr<LrSchedule>(const std::string& what, const OptionMap&)> make;
    OptionMap defaults;
  };
  NameTable<Entry> entries_{"schedule"};
};

// The library's schedules alone.
const LrScheduleRegistry& BuiltInLrSchedules();

// The same as the functions of the registry.
inline absl::StatusOr<LrSchedule> MakeLrSchedule(
    const std::string& name, const OptionMap& options = {},
    const LrScheduleRegistry& registry = BuiltInLrSchedules()) {
  return registry.Make(name, options);
}
inline std::vector<std::string> LrScheduleNames(
    const LrScheduleRegistry& registry = BuiltInLrSchedules()) {
  return registry.names();
}
inline absl::StatusOr<OptionMap> LrScheduleDefaults(
    const std::string& name, const LrScheduleRegistry& registry = BuiltInLrSchedules()) {
  return registry.Defaults(name);
}

template <typename MakeSchedule, typename Options>
void LrScheduleRegistry::Add(const std::string& name, const MakeSchedule& make,
                             const Options& defaults) {
  entries_.Add(name, {[make, defaults](const std::string& what, const OptionMap& texts) {
                        return MakeWithOptions(texts, what, defaults, make);
                      },
                      GetOptions(defaults)});
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_SCHEDULE_LR_SCHEDULE_REGISTRY_H_
