#include "apogee/checkpoint/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

namespace apogee::checkpoint {
namespace {

// What the operating system said about `path`.
absl::Status OsError(const std::string& path, const char* what, int error) {
  const std::string text = internal::Concat(path, ": cannot ", what, ": ", std::strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(text);
    case ENOENT:
    case ENOTDIR:
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

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { Close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const { return fd_; }
  int Close() { return fd_ < 0 ? 0 : close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

// write(), but a limit on the size of files (ulimit -f) is an error like a full disk; it would end
// the process with SIGXFSZ. The signal is this thread's own, so that nobody else's is taken.
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

// What of `needed` bytes did not fit where, for the message.
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
        return OsError(path_, Shortage(file_.fd(), bytes.size(), error).c_str(), error);
      }
      bytes = bytes.subspan(static_cast<size_t>(done));
      written_ += done;
    }
    StartWriteback();
    return absl::OkStatus();
  }
  // Once fsync has failed the kernel may have dropped the pages: a second try proves nothing.
  absl::Status Sync() override {
    return fsync(file_.fd()) == 0 ? absl::OkStatus() : OsError(path_, "sync", errno);
  }
  absl::Status Close() override {
    return file_.Close() == 0 ? absl::OkStatus() : OsError(path_, "close", errno);
  }

 private:
  // The disk begins while the caller makes the next bytes; else it would wait for Sync. Only a
  // hint: errors are Sync's to tell.
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
  RealReadableFile(std::string path, int fd) : path_(std::move(path)), file_(fd) {}
  absl::Status ReadSize() {
    struct stat info {};
    if (fstat(file_.fd(), &info) != 0) return OsError(path_, "read", errno);
    if (!S_ISREG(info.st_mode)) return InvalidArgument(path_, ": not a regular file");
    size_ = static_cast<int64_t>(info.st_size);
    return absl::OkStatus();
  }
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
  int64_t size_ = 0;
};

class Real : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return OsError(path, "create", errno);
    return std::make_unique<RealWritableFile>(path, fd);
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    // Not blocking, so that a pipe of that name is refused instead of waited for.
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && errno == ELOOP) return InvalidArgument(path, ": is a symbolic link");
    if (fd < 0) return OsError(path, "open", errno);
    auto file = std::make_unique<RealReadableFile>(path, fd);
    APOGEE_RETURN_IF_ERROR(file->ReadSize());
    return file;
  }

  absl::Status MakeDir(const std::string& path) override {
    if (mkdir(path.c_str(), 0777) == 0) return absl::OkStatus();
    const int error = errno;
    return OsError(path,
                   error == ENOENT ? "make the folder in one that is not there" : "make the folder",
                   error);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) {
      return absl::OkStatus();
    }
    int error = errno;
    // File systems that cannot refuse by themselves: nobody else makes these names.
    if (error == EINVAL || error == ENOSYS) {
      error = access(to.c_str(), F_OK) == 0 ? EEXIST : 0;
      if (error == 0 && rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
      if (error == 0) error = errno;
    }
    return OsError(to, internal::Concat("rename ", from, " to it").c_str(), error);
  }

  absl::Status SyncDir(const std::string& path) override {
    const Descriptor dir(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (dir.fd() < 0) return OsError(path, "open", errno);
    return fsync(dir.fd()) == 0 ? absl::OkStatus() : OsError(path, "sync", errno);
  }

  absl::Status RemoveFile(const std::string& path) override {
    return unlink(path.c_str()) == 0 ? absl::OkStatus() : OsError(path, "remove", errno);
  }

  absl::Status RemoveDir(const std::string& path) override {
    return rmdir(path.c_str()) == 0 ? absl::OkStatus() : OsError(path, "remove", errno);
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    DIR* dir = opendir(path.c_str());
    if (dir == nullptr) return OsError(path, "list", errno);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = readdir(dir)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
      errno = 0;
    }
    const int error = errno;
    closedir(dir);
    if (error != 0) return OsError(path, "list", error);
    std::ranges::sort(names);
    return names;
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

absl::Status RemoveFolder(FileSystem& files, const std::string& path) {
  const absl::StatusOr<std::vector<std::string>> names = files.List(path);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  APOGEE_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    const absl::Status removed = files.RemoveFile(JoinPath(path, name));
    if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  }
  return files.RemoveDir(path);
}

std::string JoinPath(const std::string& dir, const std::string& name) {
  return dir.empty() || dir.back() == '/' ? dir + name : dir + "/" + name;
}

}  // namespace apogee::checkpoint
