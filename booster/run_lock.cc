// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/run_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>

#include "apogee/checkpoint/agreement.h"
#include "apogee/core/text/printable.h"

namespace apogee {
namespace {

// "process 1234 on host a, since 2026-11-23 01:40:12 UTC".
std::string ThisProcess() {
  char host[256] = "unknown";
  (void)gethostname(host, sizeof(host) - 1);
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  char since[32] = "";
  std::strftime(since, sizeof(since), "%F %T UTC", gmtime_r(&now, &utc));
  return internal::Concat("process ", getpid(), " on host ", host, ", since ", since);
}

// Returns the holder's text, which may not have been written yet.
std::string HolderOf(int descriptor) {
  char text[400];
  const ssize_t count = pread(descriptor, text, sizeof(text), 0);
  return count > 0 ? Printable(std::string(text, static_cast<size_t>(count)))
                   : "an unknown process";
}

absl::Status Cannot(const std::string& path, const std::string& reason) {
  return InvalidArgument("cannot lock ", path, ": ", reason,
                         "; give a folder that you may write to");
}

// Whether the open file still has that name: the previous holder may have removed it at its end.
bool IsAt(int descriptor, const std::string& path) {
  struct stat open_file {
  }, named{};
  return fstat(descriptor, &open_file) == 0 && lstat(path.c_str(), &named) == 0 &&
         open_file.st_ino == named.st_ino && open_file.st_dev == named.st_dev;
}

absl::StatusOr<int> OpenLockFile(const std::string& path) {
  const int descriptor =
      open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (descriptor < 0) return Cannot(path, std::strerror(errno));
  struct stat what {};
  if (fstat(descriptor, &what) == 0 && S_ISREG(what.st_mode)) return descriptor;
  close(descriptor);
  return Cannot(path, "it is not a regular file; remove it");
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunLock>> RunLock::Take(const std::string& folder) {
  std::unique_ptr<RunLock> lock(new RunLock(folder));
  while (true) {
    APOGEE_ASSIGN_OR_RETURN(lock->descriptor_, OpenLockFile(lock->path_));
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    const int error = fcntl(lock->descriptor_, F_OFD_SETLK, &whole) == 0 ? 0 : errno;
    if (error == EAGAIN || error == EACCES) {
      const std::string holder = HolderOf(lock->descriptor_);
      close(std::exchange(lock->descriptor_, -1));
      return absl::FailedPreconditionError(internal::Concat(
          folder, " is in use by another run: ", holder,
          "; wait until that one has ended, or end it, or choose another output folder"));
    }
    if (error != 0) {
      lock->notice_ = internal::Concat(folder, " cannot be locked (", std::strerror(error),
                                       "): make sure that no other run writes there");
      return lock;
    }
    if (IsAt(lock->descriptor_, lock->path_)) break;
    close(std::exchange(lock->descriptor_, -1));
  }
  const std::string holder = ThisProcess();
  // The text is only for other processes' messages; on a full disk it is missing.
  if (ftruncate(lock->descriptor_, 0) == 0) {
    (void)!pwrite(lock->descriptor_, holder.data(), holder.size(), 0);
  }
  return lock;
}

absl::StatusOr<std::unique_ptr<RunLock>> RunLock::TakeForAll(const std::string& folder,
                                                             const comm::GroupPtr& group) {
  absl::StatusOr<std::unique_ptr<RunLock>> lock = std::unique_ptr<RunLock>();
  if (group == nullptr || group->rank() == 0) {
    const absl::Status made = MakeOutputFolder(folder);
    if (made.ok()) {
      lock = Take(folder);
    } else {
      lock = made;
    }
  }
  APOGEE_RETURN_IF_ERROR(checkpoint::AgreeOnStatus(lock.status(), group));
  return lock;
}

RunLock::~RunLock() {
  if (descriptor_ < 0) return;
  if (notice_.empty()) unlink(path_.c_str());  // while no other process can hold it
  close(descriptor_);
}

absl::Status MakeOutputFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return absl::OkStatus();
  return InvalidArgument("cannot make the output directory ", folder, ": ", error.message(),
                         "; give a directory that you may write to");
}

}  // namespace apogee
