// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/files/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "apogee/checkpoint/files/real_folder.h"
#include "apogee/core/process/raw_file.h"

namespace apogee::checkpoint {
namespace {

class RealWritableFile : public WritableFile {
 public:
  RealWritableFile(std::string path, int fd) : path_(std::move(path)), file_(fd) {}

  absl::Status Append(std::span<const std::byte> bytes) override {
    APOGEE_RETURN_IF_ERROR(WriteAll(file_.fd(), path_, bytes));
    written_ += static_cast<int64_t>(bytes.size());
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
    return ReadAt(file_.fd(), path_, offset, to);
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

absl::StatusOr<std::unique_ptr<ReadableFile>> OpenRegular(const std::string& path, bool follow) {
  APOGEE_ASSIGN_OR_RETURN(OpenedFile file, OpenRegularFile(path, follow));
  return std::make_unique<RealReadableFile>(path, std::move(file.descriptor), file.size);
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
