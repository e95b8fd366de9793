// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/process/raw_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace apogee {
namespace {

// write(), but a limit on the size of files (ulimit -f) gives an error like a full disk, where
// write() would end the process with SIGXFSZ. Only this thread's signal is blocked and taken.
ssize_t WriteWithoutSignal(int fd, std::span<const std::byte> bytes) {
  sigset_t limit, before;
  sigemptyset(&limit);
  sigaddset(&limit, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &limit, &before);
  const ssize_t done = write(fd, bytes.data(), bytes.size());
  const int error = errno;
  const timespec now = {};
  if (done < 0 && error == EFBIG) sigtimedwait(&limit, nullptr, &now);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return done;
}

// Describes for the message what `needed` bytes did not fit into.
std::string Shortage(int fd, size_t needed, int error) {
  struct rlimit limit {};
  if (error == EFBIG && getrlimit(RLIMIT_FSIZE, &limit) == 0) {
    return internal::Concat("write ", needed, " bytes (a file may have ", limit.rlim_cur,
                            " here, see ulimit -f)");
  }
  struct statvfs info {};
  if (error != ENOSPC || fstatvfs(fd, &info) != 0) return "write";
  return internal::Concat("write ", needed, " bytes (", info.f_bavail * info.f_frsize,
                          " are free there)");
}

absl::Status CheckRegular(const std::string& path, mode_t mode) {
  if (S_ISREG(mode)) return absl::OkStatus();
  return InvalidArgument(path, ": is a ",
                         S_ISDIR(mode)   ? "folder"
                         : S_ISLNK(mode) ? "symbolic link"
                                         : "FIFO, socket or device",
                         ", not a regular file");
}

}  // namespace

absl::Status OsError(const std::string& path, const std::string& what, int error) {
  const std::string text = internal::Concat(path, ": cannot ", what, ": ", std::strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(text);
    case ENOENT:
    case ENOTDIR:
    case ELOOP:  // links that form a loop
      return absl::NotFoundError(text);
    case EEXIST:
    case ENOTEMPTY:
      return absl::AlreadyExistsError(text);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(text);
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::UnavailableError(text);
    default:
      return absl::DataLossError(text);
  }
}

absl::StatusOr<OpenedFile> OpenRegularFile(const std::string& path, bool follow_links) {
  // Checks the kind first, because opening a device may start it. Then opens without blocking, in
  // case it has become a pipe since.
  struct stat info {};
  if (fstatat(AT_FDCWD, path.c_str(), &info, follow_links ? 0 : AT_SYMLINK_NOFOLLOW) != 0) {
    return OsError(path, "open", errno);
  }
  APOGEE_RETURN_IF_ERROR(CheckRegular(path, info.st_mode));
  Descriptor file(
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | (follow_links ? 0 : O_NOFOLLOW)));
  if (file.fd() < 0) return OsError(path, "open", errno);
  if (fstat(file.fd(), &info) != 0) return OsError(path, "read", errno);
  APOGEE_RETURN_IF_ERROR(CheckRegular(path, info.st_mode));
  return OpenedFile{std::move(file), static_cast<int64_t>(info.st_size)};
}

absl::Status ReadAt(int fd, const std::string& path, int64_t offset, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t got = pread(fd, to.data(), to.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return DataLoss(path, ": byte ", offset, ": ", std::strerror(errno));
    if (got == 0) return DataLoss(path, ": byte ", offset, ": the file ends there");
    to = to.subspan(static_cast<size_t>(got));
    offset += got;
  }
  return absl::OkStatus();
}

absl::Status WriteAll(int fd, const std::string& path, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = WriteWithoutSignal(fd, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) {
      const int error = errno;
      return OsError(path, Shortage(fd, bytes.size(), error), error);
    }
    bytes = bytes.subspan(static_cast<size_t>(done));
  }
  return absl::OkStatus();
}

int RenameNew(int folder, const std::string& from, const std::string& to) {
  if (renameat2(folder, from.c_str(), folder, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  // Some file systems cannot refuse by themselves. Checking first is enough: nobody else makes
  // these names.
  struct stat info {};
  if (fstatat(folder, to.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) return EEXIST;
  return renameat(folder, from.c_str(), folder, to.c_str()) == 0 ? 0 : errno;
}

}  // namespace apogee
