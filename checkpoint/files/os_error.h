// SPDX-License-Identifier: Apache-2.0

// OsError: an operating-system error for a path, as a status. Descriptor: a file descriptor that
// closes itself.
#ifndef APOGEE_CHECKPOINT_FILES_OS_ERROR_H_
#define APOGEE_CHECKPOINT_FILES_OS_ERROR_H_

#include <unistd.h>

#include <string>
#include <utility>

#include "apogee/core/status.h"

namespace apogee::checkpoint {

// "PATH: cannot WHAT: the system's message", with a code as listed in file_system.h.
absl::Status OsError(const std::string& path, const std::string& what, int error);

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Descriptor() { Close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }
  int Close() { return fd_ < 0 ? 0 : close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_FILES_OS_ERROR_H_
