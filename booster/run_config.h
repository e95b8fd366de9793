// SPDX-License-Identifier: Apache-2.0

// RunConfig: what a run was set up with, as texts by key. Every checkpoint keeps it; a run that
// resumes is compared with it.
//
//   booster.set_run_config({.identity = {{"criterion", "cross entropy"}},
//                           .settings = {{"steps", "1200"}, {"accumulate", "4"}}});
//
// What the library sees by itself it adds: the model's settings (nn/configured.h), plugin and
// ranks, the optimizer's options. Names, shapes and dtypes of weights are compared besides.
#ifndef APOGEE_BOOSTER_RUN_CONFIG_H_
#define APOGEE_BOOSTER_RUN_CONFIG_H_

#include <map>
#include <string>
#include <vector>

#include "apogee/booster/attributes.h"
#include "apogee/optim/lr_scheduler.h"
#include "apogee/plugins/plugin.h"

namespace apogee {

struct RunConfig {
  using Texts = std::map<std::string, std::string>;
  // What makes it this run. resume refuses another value, with a list. UTF-8; so for all.
  Texts identity = {};
  // What may change from one process to the next. resume tells each: the new value holds.
  Texts settings = {};
  // Of the optimizer's groups, as they were constructed. resume tells each that differs: the saved
  // one goes on. boost fills these in.
  std::vector<Texts> options = {};
};

// `given` and what boost can see. A scheduler's base rates stand for the rates that it has set.
RunConfig CompletedConfig(const RunConfig& given, nn::Module& model,
                          const optim::Optimizer& optimizer, const optim::LrScheduler* scheduler);
RunConfig WithLayout(RunConfig config, const Plugin& plugin);

// As attributes below "config/", with a digest of the identity.
void AddConfig(const RunConfig& config, Attributes& attributes);

struct ConfigDifferences {
  bool was_saved = true;             // false: the checkpoint is of an earlier version
  RunConfig saved;                   // empty where it was not
  std::string refused;               // a line per difference, each after a line end
  std::vector<std::string> notices;  // a sentence each
};
// What differs between the saved run and this one. DataLoss where the digest is not that of what is
// there. `path` is for messages.
absl::StatusOr<ConfigDifferences> CompareConfig(const Attributes& attributes, const RunConfig& now,
                                                const std::string& path);

}  // namespace apogee

#endif  // APOGEE_BOOSTER_RUN_CONFIG_H_
