// SPDX-License-Identifier: Apache-2.0

// SaveRunner: runs the saves of a Booster, one at a time, on the caller's thread or in the
// background. Private to booster.
//
//   APOGEE_RETURN_IF_ERROR(runner.Wait());             // for the save before
//   return runner.Run(use_async, plugin.group(), save, [save, target](const comm::GroupPtr& own) {
//     return save->Write(target, own);
//   });
#ifndef APOGEE_BOOSTER_SAVE_RUNNER_H_
#define APOGEE_BOOSTER_SAVE_RUNNER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/checkpoint/background_saver.h"
#include "apogee/checkpoint/planned_save.h"
#include "apogee/core/trace/trace.h"

namespace apogee {

class SaveRunner {
 public:
  using Save = std::shared_ptr<checkpoint::PlannedSave>;
  using Notice = std::function<void(const std::string&)>;

  SaveRunner() = default;
  // Waits. Prints an error that Wait has not returned, and the notices that remain.
  ~SaveRunner();
  SaveRunner(const SaveRunner&) = delete;
  SaveRunner& operator=(const SaveRunner&) = delete;

  // Records saves on the lane of their thread.
  void TraceTo(TraceLane* caller, TraceLane* background);

  // Runs `write` on this thread, or in the background with copies of the data that `save` needs.
  // The first call duplicates `group`; null: one rank. Collective. Call Wait before.
  absl::Status Run(bool use_async, const comm::GroupPtr& group, const Save& save,
                   checkpoint::BackgroundSaver::Write write);
  // Waits for the running save and returns its status, once. Passes its notices on. Does not
  // communicate.
  absl::Status Wait();
  // Waits for the running save, and leaves its status.
  void Settle() const;
  // The status that Wait would return; nothing while a save is running.
  std::optional<absl::Status> status() const;
  // For a save that Run starts in the background: returns a function that keeps notices, until Wait
  // passes them to `receiver` on its thread.
  Notice Keep(Notice receiver);

 private:
  TraceLane* caller_lane_ = nullptr;
  TraceLane* background_lane_ = nullptr;
  // Owned by the running save's thread until it ends.
  std::shared_ptr<std::vector<std::string>> notices_;
  Notice receiver_;
  std::unique_ptr<checkpoint::BackgroundSaver> saver_;  // after the first save
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_SAVE_RUNNER_H_
