// SPDX-License-Identifier: Apache-2.0

// StateFiles: saves and loads parts of a training state: the weights as Hugging Face libraries read
// them, the optimizer, the schedule. The Booster hands its calls on; the rules are described there.
// Private to booster.
//
//   absl::Status saved = StateFiles(parts, runner).SaveModel("out", {.config_json = config});
//
// Collective over the plugin's ranks.
#ifndef APOGEE_BOOSTER_STATE_FILES_H_
#define APOGEE_BOOSTER_STATE_FILES_H_

#include <memory>
#include <string>

#include "apogee/booster/save_options.h"
#include "apogee/booster/save_runner.h"
#include "apogee/booster/training_state.h"
#include "apogee/checkpoint/hf/hf_weights.h"

namespace apogee {

class Adapters;  // lora/adapters.h

class StateFiles {
 public:
  using Files = std::shared_ptr<checkpoint::FileSystem>;

  // `runner` runs the saves, and loads wait for it.
  StateFiles(const TrainingParts& parts, SaveRunner& runner) : parts_(parts), runner_(runner) {}

  absl::Status SaveModel(const std::string& path, const SaveModelOptions& options);
  absl::StatusOr<checkpoint::LoadReport> LoadModel(const std::string& path,
                                                   const LoadModelOptions& options);
  absl::Status SaveAdapter(const Adapters& adapters, const std::string& path,
                           const SaveAdapterOptions& options);
  absl::Status LoadAdapter(const Adapters& adapters, const std::string& path,
                           const std::string& adapter, const Files& files);
  absl::Status SaveOptimizer(const std::string& path, const FileOptions& options);
  absl::Status LoadOptimizer(const std::string& path, const Files& files);
  // Throw Error without a schedule.
  absl::Status SaveScheduler(const std::string& path, const FileOptions& options);
  absl::Status LoadScheduler(const std::string& path, const Files& files);

 private:
  // The weights and, beside them, the masters that they are rounded from.
  std::vector<checkpoint::TensorPart> PartsToLoad() const;
  absl::Status Write(const std::string& path, bool use_async, const Files& files,
                     const SaveRunner::Save& save);

  TrainingParts parts_;
  SaveRunner& runner_;
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_STATE_FILES_H_
