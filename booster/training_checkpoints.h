// SPDX-License-Identifier: Apache-2.0

// TrainingCheckpoints: the training states that a run saves into a folder and resumes from. The
// Booster hands its calls on; the rules are described there. Private to booster.
//
//   absl::Status saved = checkpoints.Save(parts, folder, {.step = 100}, options, runner);
//   absl::StatusOr<Resumed> resumed = checkpoints.Resume(parts, folder, files, runner);
//
// Collective over the plugin's ranks. Plans a save, makes room in the folder, writes, and removes
// old checkpoints. Resume chooses the checkpoint, and makes the ranks agree on it.
#ifndef APOGEE_BOOSTER_TRAINING_CHECKPOINTS_H_
#define APOGEE_BOOSTER_TRAINING_CHECKPOINTS_H_

#include <map>
#include <memory>
#include <string>

#include "apogee/booster/run_lock.h"
#include "apogee/booster/save_options.h"
#include "apogee/booster/save_runner.h"
#include "apogee/booster/training_state.h"

namespace apogee {

class TrainingCheckpoints {
 public:
  // Booster::save_training_state. A save in the background uses this object until it ends.
  absl::Status Save(const TrainingParts& parts, const std::string& folder,
                    const RunPosition& position, const SaveOptions& options, SaveRunner& runner);
  // Booster::resume. Waits for the runner's save, which may be the newest.
  absl::StatusOr<Resumed> Resume(const TrainingParts& parts, const std::string& folder,
                                 const std::shared_ptr<checkpoint::FileSystem>& files,
                                 const SaveRunner& runner);
  // Booster::check_space.
  static absl::Status CheckSpace(const TrainingParts& parts, const std::string& folder,
                                 int64_t checkpoints,
                                 const std::shared_ptr<checkpoint::FileSystem>& files);

 private:
  std::unique_ptr<RunLock> lock_;                   // rank 0: the last save's folder
  std::map<std::string, std::string> passed_over_;  // checkpoints that Resume skipped, and why
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_TRAINING_CHECKPOINTS_H_
