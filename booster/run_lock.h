// SPDX-License-Identifier: Apache-2.0

// RunLock: gives a folder to one run at a time. Two runs that write to the same files would mix
// their rows and remove each other's checkpoints.
//
//   APOGEE_ASSIGN_OR_RETURN(const std::unique_ptr<RunLock> lock, RunLock::Take("out"));
//   ...                               // until `lock` is destroyed or the process ends
//
// One rank takes it, before anything is written; all ranks need its status
// (checkpoint/agreement.h). RunLock::TakeForAll does both.
//
// The lock is the operating system's, on a file `.lock` in the folder. It ends with the process,
// however that ends: a file left behind by a killed run locks nothing. It is an open file
// description lock (fcntl, F_OFD_SETLK). It works between threads of one process, and over NFS
// between machines if the mount has locks (not with `nolock` or `local_lock`). On a file system
// without locks the folder stays unlocked, and notice() says so. The destructor removes the file.
#ifndef APOGEE_BOOSTER_RUN_LOCK_H_
#define APOGEE_BOOSTER_RUN_LOCK_H_

#include <memory>
#include <string>

#include "apogee/comm/group.h"
#include "apogee/core/status.h"

namespace apogee {

class RunLock {
 public:
  // The folder must exist (MakeOutputFolder). FailedPrecondition if another run has it, with that
  // run's process, host and start time; InvalidArgument if the file cannot be made.
  static absl::StatusOr<std::unique_ptr<RunLock>> Take(const std::string& folder);
  // Rank 0 of the group makes the folder and takes the lock; other ranks get null. A null group is
  // one rank. Collective; the same status on every rank.
  static absl::StatusOr<std::unique_ptr<RunLock>> TakeForAll(const std::string& folder,
                                                             const comm::GroupPtr& group);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  const std::string& folder() const { return folder_; }
  // The reason why there is no lock, or "".
  const std::string& notice() const { return notice_; }

 private:
  explicit RunLock(const std::string& folder) : folder_(folder), path_(folder + "/.lock") {}

  std::string folder_, path_;
  std::string notice_;
  int descriptor_ = -1;
};

// Makes a folder and its parents, if missing. InvalidArgument with the remedy.
absl::Status MakeOutputFolder(const std::string& folder);

}  // namespace apogee

#endif  // APOGEE_BOOSTER_RUN_LOCK_H_
