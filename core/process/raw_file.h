// SPDX-License-Identifier: Apache-2.0

// Files by descriptors, with errors as statuses. The layers above build their file interfaces on
// it.
//
//   APOGEE_ASSIGN_OR_RETURN(const OpenedFile file, OpenRegularFile("corpus.bin"));
//   std::array<std::byte, 8> head;
//   APOGEE_RETURN_IF_ERROR(ReadAt(file.descriptor.fd(), "corpus.bin", /*offset=*/0, head));
#ifndef APOGEE_CORE_PROCESS_RAW_FILE_H_
#define APOGEE_CORE_PROCESS_RAW_FILE_H_

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "apogee/core/status.h"

namespace apogee {

// "PATH: cannot WHAT: the system's message". ResourceExhausted for a full disk or quota, NotFound
// for a missing path, AlreadyExists, PermissionDenied (also for a read-only file system),
// Unavailable if the system lacks descriptors or memory, else DataLoss.
absl::Status OsError(const std::string& path, const std::string& what, int error);

// A file descriptor that closes itself.
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

struct OpenedFile {
  Descriptor descriptor;
  int64_t size;  // when it was opened
};
// Opens a regular file for reading; `follow_links`: also through symbolic links. Anything else is
// InvalidArgument, without waiting for a pipe or touching a device.
absl::StatusOr<OpenedFile> OpenRegularFile(const std::string& path, bool follow_links = true);

// Reads exactly these bytes, or returns DataLoss that names the offset: the file may have become
// shorter.
absl::Status ReadAt(int fd, const std::string& path, int64_t offset, std::span<std::byte> to);
// Writes all bytes at the descriptor's position. A limit on the size of files (ulimit -f) gives an
// error like a full disk, not the signal SIGXFSZ.
absl::Status WriteAll(int fd, const std::string& path, std::span<const std::byte> bytes);
// Renames in a folder. Atomic; nothing of the new name may exist. Returns 0 or the errno.
int RenameNew(int folder, const std::string& from, const std::string& to);

}  // namespace apogee

#endif  // APOGEE_CORE_PROCESS_RAW_FILE_H_
