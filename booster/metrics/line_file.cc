// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/metrics/line_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace apogee {
namespace {

absl::Status CannotWrite(const std::string& path, const std::string& reason) {
  return InvalidArgument("cannot write ", path, ": ", reason,
                         "; give an output directory that you may write to");
}

absl::Status NoFile(const std::string& path, const std::string& what) {
  return InvalidArgument("cannot write ", path, ": it is ", what,
                         ", not a regular file; remove it or choose another place for the output");
}

}  // namespace

absl::StatusOr<std::unique_ptr<LineFile>> LineFile::Create(const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(std::unique_ptr<LineFile> file, Open(path));
  if (ftruncate(file->descriptor_, 0) != 0) return CannotWrite(path, std::strerror(errno));
  return file;
}

absl::StatusOr<std::unique_ptr<LineFile>> LineFile::Continue(const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(std::unique_ptr<LineFile> file, Open(path));
  file->size_ = lseek(file->descriptor_, 0, SEEK_END);
  return file;
}

absl::Status LineFile::Replace(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  APOGEE_ASSIGN_OR_RETURN(const std::unique_ptr<LineFile> file, Create(temporary));
  absl::Status status = file->Append(text);
  std::error_code error;
  if (status.ok()) std::filesystem::rename(temporary, path, error);
  if (error) status = CannotWrite(path, error.message());
  if (!status.ok()) std::filesystem::remove(temporary, error);
  return status;
}

absl::StatusOr<std::unique_ptr<LineFile>> LineFile::Open(const std::string& path) {
  // A FIFO without a reader would keep open(2) waiting.
  const int descriptor =
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (descriptor < 0) {
    if (errno == ELOOP) return NoFile(path, "a symbolic link, whose target would be overwritten");
    if (errno == ENXIO) return NoFile(path, "a FIFO or a socket");
    return CannotWrite(path, std::strerror(errno));
  }
  std::unique_ptr<LineFile> file(new LineFile(path, descriptor));
  struct stat what {};
  if (fstat(descriptor, &what) != 0) return CannotWrite(path, std::strerror(errno));
  if (!S_ISREG(what.st_mode)) return NoFile(path, S_ISFIFO(what.st_mode) ? "a FIFO" : "a device");
  return file;
}

LineFile::~LineFile() { close(descriptor_); }

absl::Status LineFile::Append(const std::string& record) {
  size_t done = 0;
  while (done < record.size()) {
    const ssize_t count = write(descriptor_, record.data() + done, record.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = count < 0 ? errno : 0;
      const std::string reason = error != 0 ? std::strerror(error) : "nothing was written";
      const bool cut = ftruncate(descriptor_, size_) == 0;
      return DataLoss("cannot write to ", path_, ": ", reason,
                      cut || done == 0 ? "" : "; its last line is incomplete",
                      error == EFBIG
                          ? "; raise the limit of file sizes (ulimit -f)"
                          : "; free some space on that disk or choose another output directory");
    }
    done += static_cast<size_t>(count);
  }
  size_ += static_cast<int64_t>(record.size());
  return absl::OkStatus();
}

}  // namespace apogee
