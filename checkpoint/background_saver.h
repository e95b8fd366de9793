// SPDX-License-Identifier: Apache-2.0

// BackgroundSaver: writes saves on a thread of its own while training goes on.
//
//   BackgroundSaver saver(group);                                  // every rank
//   APOGEE_RETURN_IF_ERROR(saver.Wait());                          // for the save before
//   saver.Start([save, target](const comm::GroupPtr& own) { return save->Write(target, own); });
//   ... train ...
//   absl::Status status = saver.Wait();                            // the same on every rank
//
// One save at a time. Ranks talk over a duplicate of the group, so that what training communicates
// is not in their way; it waits an hour for a rank whose disk is slow. Used by one thread.
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
  // Waits. What the last save said is lost: call Wait first.
  ~BackgroundSaver() = default;
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  // Every rank, with its part of the same save; after Wait. What `write` throws becomes Internal.
  void Start(Write write);
  // Ends when the save under way has; its status, once. Ok without one. Does not communicate.
  absl::Status Wait();
  // Ends when the save under way has; its status stays.
  void Settle() const;
  // As Wait would say, but the status stays; nothing while the save is under way.
  std::optional<absl::Status> Peek();

  // For saves on the caller's thread; not while another is under way.
  const comm::GroupPtr& group() const { return group_; }

 private:
  // Disks take their time, and one rank may write more than another.
  static constexpr auto kTimeout = std::chrono::hours(1);

  comm::GroupPtr group_;
  std::shared_future<absl::Status> running_;  // waits for its thread when it goes
};

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_BACKGROUND_SAVER_H_
