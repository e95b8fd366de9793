// SPDX-License-Identifier: Apache-2.0

// RunConfig: the setup of a run, as texts by key. Every checkpoint keeps it, and resume compares it
// with the new run's.
//
//   booster.set_run_config({.identity = {{"criterion", "cross entropy"}},
//                           .settings = {{"steps", "1200"}, {"accumulate", "4"}}});
//
// The library itself adds the model's settings (nn/configured.h), the plugin, the ranks and the
// optimizer's options. Names, shapes and dtypes of weights are also compared.
#ifndef APOGEE_BOOSTER_RUN_CONFIG_H_
#define APOGEE_BOOSTER_RUN_CONFIG_H_

#include <map>
#include <string>
#include <vector>

#include "apogee/booster/attributes.h"
#include "apogee/booster/run_record.h"
#include "apogee/optim/schedule/lr_scheduler.h"
#include "apogee/plugins/plugin.h"

namespace apogee {

// Returns `given` with the settings of the model, the optimizer and the scheduler added. The
// scheduler's base rates stand in for the current rates, which it changes.
RunConfig CompletedConfig(const RunConfig& given, nn::Module& model,
                          const optim::Optimizer& optimizer, const optim::LrScheduler* scheduler);
RunConfig WithLayout(RunConfig config, const Plugin& plugin);

// Adds `config` as attributes below "config/", with a digest of the identity.
void AddConfig(const RunConfig& config, Attributes& attributes);

struct ConfigDifferences {
  bool was_saved = true;             // false: an earlier version wrote the checkpoint
  RunConfig saved;                   // empty if it was not saved
  std::string refused;               // a line per difference, each after a line end
  std::vector<std::string> notices;  // a sentence each
};
// Returns the differences between the saved run and this one. DataLoss if the digest does not match
// the saved identity. `path` is for messages.
absl::StatusOr<ConfigDifferences> CompareConfig(const Attributes& attributes, const RunConfig& now,
                                                const std::string& path);

}  // namespace apogee

#endif  // APOGEE_BOOSTER_RUN_CONFIG_H_
