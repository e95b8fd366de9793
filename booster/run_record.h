// SPDX-License-Identifier: Apache-2.0

// What a checkpoint records about its run, besides tensors.
//
//   booster.set_run_config({.identity = {{"data", "books"}}, .settings = {{"steps", "1200"}}});
//   OkOrThrow(booster.save_training_state("run/checkpoints", {.step = 100}));
#ifndef APOGEE_BOOSTER_RUN_RECORD_H_
#define APOGEE_BOOSTER_RUN_RECORD_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace apogee {

struct RunPosition {
  int64_t step = 0;
  std::map<std::string, std::string> extra = {};  // the caller's, UTF-8
};

struct RunConfig {
  using Texts = std::map<std::string, std::string>;
  // Must be equal for a run to continue: resume refuses other values, with a list. All texts are
  // UTF-8.
  Texts identity = {};
  // May change from one process to the next: resume reports differences, and the new value holds.
  Texts settings = {};
  // The options of the optimizer's groups, as constructed. resume reports differences, and the
  // saved value holds. boost fills these in.
  std::vector<Texts> options = {};
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_RUN_RECORD_H_
