// SPDX-License-Identifier: Apache-2.0

// Everything that a training run is, as a checkpoint: weights, master weights, all optimizer states
// and options, loss scale, learning-rate schedule, random state, and what the caller adds (where it
// is in its data). A run that resumes computes the bits of one that never stopped.
//
//   TrainingState state({.model = model, .optimizer = optimizer, .scheduler = &scheduler,
//                        .plugin = plugin});
//   absl::Status saved = state.Save(files, "run/step-100", {.step = 100, .extra = {{"batch",
//   "7"}}}); absl::StatusOr<RunPosition> at = state.Load(files, "run/step-100");
//
// Collective over the plugin's ranks, after boost; every rank gets the same status. A checkpoint
// loads under another plugin and another number of ranks; bits go on unchanged where the new layout
// computes the same bits. Model, optimizer, its groups, and precision must be those that were
// saved, and so the identity in RunConfig: Load lists everything that does not fit
// (InvalidArgument); DataLoss where the checkpoint
// itself is damaged. When Load fails nothing has changed.
#ifndef APOGEE_BOOSTER_TRAINING_STATE_H_
#define APOGEE_BOOSTER_TRAINING_STATE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apogee/booster/run_config.h"
#include "apogee/checkpoint/planned_save.h"
#include "apogee/optim/lr_scheduler.h"
#include "apogee/plugins/plugin.h"

namespace apogee {

struct RunPosition {
  int64_t step = 0;
  std::map<std::string, std::string> extra = {};  // the caller's, UTF-8
};

struct TrainingParts {
  nn::Module& model;
  optim::Optimizer& optimizer;
  optim::LrScheduler* scheduler = nullptr;
  Plugin& plugin;
  // What Save keeps, and Load compares and, of the options, replaces by what goes on. Null: none.
  RunConfig* config = nullptr;
};

class TrainingState {
 public:
  // The parts must outlive it.
  explicit TrainingState(const TrainingParts& parts) : parts_(parts) {}

  absl::Status Save(const std::shared_ptr<checkpoint::FileSystem>& files, const std::string& path,
                    const RunPosition& position) const;
  // The first half of Save (checkpoint/planned_save.h).
  absl::StatusOr<std::unique_ptr<checkpoint::PlannedSave>> Plan(const RunPosition& position) const;
  absl::StatusOr<RunPosition> Load(const std::shared_ptr<checkpoint::FileSystem>& files,
                                   const std::string& path);
  // What the last Load found that is not an error: settings and options that are not the saved
  // run's, a learning-rate schedule of other rates, and what was saved of a schedule or loss scale
  // that this run lacks.
  const std::vector<std::string>& notices() const { return notices_; }

 private:
  struct Loaded;
  absl::Status Read(const std::shared_ptr<checkpoint::FileSystem>& files, const std::string& path,
                    Loaded& loaded) const;
  absl::Status Apply(Loaded& loaded);

  TrainingParts parts_;
  std::vector<std::string> notices_;
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_TRAINING_STATE_H_
