// SPDX-License-Identifier: Apache-2.0

// BackgroundSaver: writes saves on its own thread while training continues.
//
//   BackgroundSaver saver(group);                                  // every rank
//   APOGEE_RETURN_IF_ERROR(saver.Wait());                          // for the previous save
//   saver.Start([save, target](const comm::GroupPtr& own) { return save->Write(target, own); });
//   ... train ...
//   absl::Status status = saver.Wait();                            // the same on every rank
//
// One save at a time. Ranks communicate over a duplicate of the group, so they do not interfere
// with training. Its timeout is an hour, for a rank with a slow disk. Use it from one thread.
#ifndef APOGEE_CHECKPOINT_BACKGROUND_SAVER_H_
#define APOGEE_CHECKPOINT_BACKGROUND_SAVER_H_

#include <chrono>
#include <functional>
#include <future>
#include <optional>

#include "apogee/comm/group.h"
#include "apogee/core/status.h"

namespace apogee::checkpoint {

class BackgroundSaver {
 public:
  using Write = std::function<absl::Status(const comm::GroupPtr& group)>;

  // Collective; null: one rank.
  explicit BackgroundSaver(const comm::GroupPtr& group)
      : group_(group == nullptr ? nullptr : group->Duplicate(kTimeout)) {}
  // Waits. The last save's status is lost; to get it call Wait first.
  ~BackgroundSaver() = default;
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  // Every rank calls, with its part of the same save, after Wait. An exception from `write` becomes
  // an Internal status.
  void Start(Write write);
  // Waits until the running save ends, and returns its status, once. Ok if there is none. Does not
  // communicate.
  absl::Status Wait();
  // Waits until the running save ends, and leaves its status.
  void Settle() const;
  // Returns the status that Wait would, and leaves it; nothing while a save is running.
  std::optional<absl::Status> Peek();

  // For saves on the caller's thread; do not use it while a save is running.
  const comm::GroupPtr& group() const { return group_; }

 private:
  // Disks may be slow, and one rank may write more than another.
  static constexpr auto kTimeout = std::chrono::hours(1);

  comm::GroupPtr group_;
  std::shared_future<absl::Status> running_;  // its destruction waits for the thread
};

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_BACKGROUND_SAVER_H_
