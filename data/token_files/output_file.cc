// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/token_files/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>

namespace apogee::data {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;
constexpr int64_t kWritebackBytes = int64_t{1} << 23;

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}
std::string NameOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }

absl::StatusOr<Descriptor> OpenFolderOf(const std::string& path) {
  Descriptor folder(open(FolderOf(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.fd() < 0) return OsError(FolderOf(path), "open", errno);
  return folder;
}

}  // namespace

std::string TemporaryOf(const std::string& path) {
  const std::string folder = FolderOf(path);
  return (folder == "." ? "" : folder) + ".tmp-" + NameOf(path);
}

absl::Status CheckFree(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return absl::OkStatus();
  return absl::AlreadyExistsError(path +
                                  ": there is something of that name; nothing is overwritten: "
                                  "move it away, or choose another name");
}

absl::Status SyncFolderOf(const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(const Descriptor folder, OpenFolderOf(path));
  return fsync(folder.fd()) == 0 ? absl::OkStatus() : OsError(FolderOf(path), "sync", errno);
}

absl::StatusOr<OutputFile> OutputFile::Open(const std::string& path, int64_t keep) {
  APOGEE_RETURN_IF_ERROR(CheckFree(path));
  const std::string temporary = TemporaryOf(path);
  Descriptor fd(open(temporary.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (fd.fd() < 0) return OsError(temporary, "create", errno);
  if (flock(fd.fd(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(temporary + ": another process writes it");
  }
  struct stat info {};
  if (fstat(fd.fd(), &info) != 0) return OsError(temporary, "examine", errno);
  if (info.st_size < keep) {
    return DataLoss(temporary, ": has ", info.st_size, " bytes, but ", keep,
                    " were written before: remove it, and what lies beside it, to start anew");
  }
  if (ftruncate(fd.fd(), keep) != 0) return OsError(temporary, "cut", errno);
  if (lseek(fd.fd(), keep, SEEK_SET) != keep) return OsError(temporary, "write", errno);
  return OutputFile(path, std::move(fd), keep);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::move(other.file_)),
      named_(other.named_),
      written_(other.written_),
      started_(other.started_),
      buffer_(std::move(other.buffer_)) {}

OutputFile::~OutputFile() {
  if (file_.fd() >= 0 && !named_) unlink(TemporaryOf(path_).c_str());
}

absl::Status OutputFile::Append(std::span<const std::byte> bytes) {
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  return buffer_.size() < kBufferBytes ? absl::OkStatus() : Flush();
}

absl::Status OutputFile::Flush() {
  APOGEE_RETURN_IF_ERROR(WriteAll(file_.fd(), TemporaryOf(path_), buffer_));
  written_ += static_cast<int64_t>(buffer_.size());
  buffer_.clear();
  // Lets the disk start while the caller makes the next bytes; else it would wait for Sync. Only a
  // hint: Sync reports errors.
  if (written_ - started_ >= kWritebackBytes) {
    sync_file_range(file_.fd(), started_, written_ - started_, SYNC_FILE_RANGE_WRITE);
    started_ = written_;
  }
  return absl::OkStatus();
}

absl::Status OutputFile::ReadBack(int64_t offset, std::span<std::byte> to) {
  APOGEE_RETURN_IF_ERROR(Flush());
  return ReadAt(file_.fd(), TemporaryOf(path_), offset, to);
}

absl::Status OutputFile::WriteHead(std::span<const std::byte> bytes) {
  APOGEE_RETURN_IF_ERROR(Flush());
  if (lseek(file_.fd(), 0, SEEK_SET) != 0) return OsError(path_, "write", errno);
  APOGEE_RETURN_IF_ERROR(WriteAll(file_.fd(), TemporaryOf(path_), bytes));
  return lseek(file_.fd(), 0, SEEK_END) < 0 ? OsError(path_, "write", errno) : absl::OkStatus();
}

absl::Status OutputFile::Sync() {
  APOGEE_RETURN_IF_ERROR(Flush());
  // After a failed fsync the kernel may have dropped the pages, so a second try proves nothing.
  return fsync(file_.fd()) == 0 ? absl::OkStatus() : OsError(TemporaryOf(path_), "sync", errno);
}

absl::Status OutputFile::Publish() {
  APOGEE_ASSIGN_OR_RETURN(const Descriptor folder, OpenFolderOf(path_));
  const int error = RenameNew(folder.fd(), NameOf(TemporaryOf(path_)), NameOf(path_));
  if (error != 0) return OsError(path_, "rename " + TemporaryOf(path_) + " to it", error);
  named_ = true;
  return absl::OkStatus();
}

void OutputFile::Withdraw() {
  if (named_) unlink(path_.c_str());
}

}  // namespace apogee::data
