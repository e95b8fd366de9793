// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/files/file_system.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "apogee/checkpoint/files/os_error.h"
#include "apogee/checkpoint/files/real_folder.h"

namespace apogee::checkpoint {
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

class RealWritableFile : public WritableFile {
 public:
  RealWritableFile(std::string path, int fd) : path_(std::move(path)), file_(fd) {}

  absl::Status Append(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t done = WriteWithoutSignal(file_.fd(), bytes);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) {
        const int error = errno;
        return OsError(path_, Shortage(file_.fd(), bytes.size(), error), error);
      }
      bytes = bytes.subspan(static_cast<size_t>(done));
      written_ += done;
    }
    StartWriteback();
    return absl::OkStatus();
  }
  // After a failed fsync the kernel may have dropped the pages, so a second try proves nothing.
  absl::Status Sync() override {
    return fsync(file_.fd()) == 0 ? absl::OkStatus() : OsError(path_, "sync", errno);
  }
  absl::Status Close() override {
    return file_.Close() == 0 ? absl::OkStatus() : OsError(path_, "close", errno);
  }

 private:
  // Lets the disk start while the caller makes the next bytes; else it would wait for Sync. Only a
  // hint: Sync reports errors.
  void StartWriteback() {
    constexpr int64_t kAtOnce = int64_t{1} << 23;
    if (written_ - started_ < kAtOnce) return;
    sync_file_range(file_.fd(), started_, written_ - started_, SYNC_FILE_RANGE_WRITE);
    started_ = written_;
  }

  std::string path_;
  Descriptor file_;
  int64_t written_ = 0, started_ = 0;
};

class RealReadableFile : public ReadableFile {
 public:
  RealReadableFile(std::string path, Descriptor file, int64_t size)
      : path_(std::move(path)), file_(std::move(file)), size_(size) {}
  const std::string& path() const override { return path_; }
  int64_t size() const override { return size_; }
  absl::Status Read(int64_t offset, std::span<std::byte> to) const override {
    while (!to.empty()) {
      const ssize_t got = pread(file_.fd(), to.data(), to.size(), offset);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return DataLoss(path_, ": byte ", offset, ": ", std::strerror(errno));
      if (got == 0) return DataLoss(path_, ": byte ", offset, ": the file ends there");
      to = to.subspan(static_cast<size_t>(got));
      offset += got;
    }
    return absl::OkStatus();
  }

 private:
  std::string path_;
  Descriptor file_;
  int64_t size_;
};

PathKind KindOfMode(mode_t mode) {
  return S_ISREG(mode)   ? PathKind::kFile
         : S_ISDIR(mode) ? PathKind::kFolder
         : S_ISLNK(mode) ? PathKind::kLink
                         : PathKind::kOther;
}

absl::Status CheckRegular(const std::string& path, mode_t mode) {
  if (S_ISREG(mode)) return absl::OkStatus();
  return InvalidArgument(path, ": is a ", PathKindName(KindOfMode(mode)), ", not a regular file");
}

absl::StatusOr<std::unique_ptr<ReadableFile>> OpenRegular(const std::string& path, bool follow) {
  // Checks the kind first, because opening a device may start it. Then opens without blocking, in
  // case it has become a pipe since.
  struct stat info {};
  if (fstatat(AT_FDCWD, path.c_str(), &info, follow ? 0 : AT_SYMLINK_NOFOLLOW) != 0) {
    return OsError(path, "open", errno);
  }
  APOGEE_RETURN_IF_ERROR(CheckRegular(path, info.st_mode));
  Descriptor file(
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | (follow ? 0 : O_NOFOLLOW)));
  if (file.fd() < 0) return OsError(path, "open", errno);
  if (fstat(file.fd(), &info) != 0) return OsError(path, "read", errno);
  APOGEE_RETURN_IF_ERROR(CheckRegular(path, info.st_mode));
  return std::make_unique<RealReadableFile>(path, std::move(file),
                                            static_cast<int64_t>(info.st_size));
}

class Real : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    const Descriptor folder(
        open(ParentOf(path).c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (folder.fd() < 0) return OsError(path, "create", errno);
    const int fd =
        openat(folder.fd(), NameOf(path).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return OsError(path, "create", errno);
    return std::make_unique<RealWritableFile>(path, fd);
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    return OpenRegular(path, /*follow=*/false);
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenThroughLinks(const std::string& path) override {
    return OpenRegular(path, /*follow=*/true);
  }

  absl::Status MakeDir(const std::string& path) override {
    if (mkdir(path.c_str(), 0777) == 0) return absl::OkStatus();
    const int error = errno;
    return OsError(path, error == ENOENT ? "make the folder in a missing one" : "make the folder",
                   error);
  }

  absl::StatusOr<std::unique_ptr<Folder>> OpenFolder(const std::string& path) override {
    return OpenRealFolder(path);
  }

  absl::StatusOr<PathKind> KindOf(const std::string& path) override {
    struct stat info {};
    if (lstat(path.c_str(), &info) == 0) return KindOfMode(info.st_mode);
    if (errno == ENOENT || errno == ENOTDIR) return PathKind::kNothing;
    return OsError(path, "examine", errno);
  }

  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override {
    struct statvfs info {};
    if (statvfs(path.c_str(), &info) != 0) return OsError(path, "ask for free space", errno);
    return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
  }
};

}  // namespace

const std::shared_ptr<FileSystem>& RealFileSystem() {
  static const auto& real = *new std::shared_ptr<FileSystem>(std::make_shared<Real>());
  return real;
}

const char* PathKindName(PathKind kind) {
  switch (kind) {
    case PathKind::kNothing:
      return "nothing";
    case PathKind::kFile:
      return "file";
    case PathKind::kFolder:
      return "folder";
    case PathKind::kLink:
      return "symbolic link";
    case PathKind::kOther:
      return "FIFO, socket or device";
  }
  return "";
}

absl::StatusOr<std::vector<std::string>> FileSystem::List(const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(const std::unique_ptr<Folder> folder, OpenFolder(path));
  return folder->List();
}

absl::Status FileSystem::SyncDir(const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(const std::unique_ptr<Folder> folder, OpenFolder(path));
  return folder->Sync();
}

std::string JoinPath(const std::string& dir, const std::string& name) {
  return dir.empty() || dir.back() == '/' ? dir + name : dir + "/" + name;
}

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : (slash == 0 ? "/" : path.substr(0, slash));
}

std::string NameOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

}  // namespace apogee::checkpoint
