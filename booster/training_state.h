// SPDX-License-Identifier: Apache-2.0

// TrainingState: everything that makes up a training run, as a checkpoint: weights, master weights,
// all optimizer states and options, loss scale, learning-rate schedule, random state, and the
// caller's additions (the position in its data). A run that resumes computes the same bits as one
// that never stopped.
//
//   TrainingState state({.model = model, .optimizer = optimizer, .scheduler = &scheduler,
//                        .plugin = plugin});
//   absl::Status saved =
//       state.Save(files, "run/step-100", {.step = 100, .extra = {{"batch", "7"}}});
//   absl::StatusOr<RunPosition> at = state.Load(files, "run/step-100");
//
// Collective over the plugin's ranks, after boost; every rank gets the same status. A checkpoint
// loads under another plugin and another number of ranks; the bits stay the same if the new layout
// computes the same bits. The model, the optimizer, its groups, the precision, and the identity in
// RunConfig must be the saved ones. Load returns InvalidArgument that lists everything that does
// not fit, or DataLoss if the checkpoint is damaged. If Load fails, nothing has changed.
#ifndef APOGEE_BOOSTER_TRAINING_STATE_H_
#define APOGEE_BOOSTER_TRAINING_STATE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apogee/booster/run_record.h"
#include "apogee/checkpoint/planned_save.h"
#include "apogee/optim/schedule/lr_scheduler.h"
#include "apogee/plugins/plugin.h"

namespace apogee {

struct TrainingParts {
  nn::Module& model;
  optim::Optimizer& optimizer;
  optim::LrScheduler* scheduler = nullptr;
  Plugin& plugin;
  // Save keeps it. Load compares it, and replaces its options by the saved ones, which stay in
  // force. Null: none.
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
  // Differences that the last Load found and that are not errors: other settings and options than
  // the saved run's, a learning-rate schedule with other rates, and a saved schedule or loss scale
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
