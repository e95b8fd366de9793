#include "apogee/booster/line_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace apogee {

absl::StatusOr<std::unique_ptr<LineFile>> LineFile::Create(const std::string& path) {
  return Open(path, O_TRUNC);
}

absl::StatusOr<std::unique_ptr<LineFile>> LineFile::Continue(const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(std::unique_ptr<LineFile> file, Open(path, 0));
  file->size_ = lseek(file->descriptor_, 0, SEEK_END);
  return file;
}

absl::StatusOr<std::unique_ptr<LineFile>> LineFile::Open(const std::string& path, int flags) {
  const int descriptor =
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | flags, 0666);
  if (descriptor < 0) {
    return InvalidArgument("cannot write ", path, ": ", std::strerror(errno),
                           "; give an output directory that you may write to");
  }
  return std::unique_ptr<LineFile>(new LineFile(path, descriptor));
}

LineFile::~LineFile() { close(descriptor_); }

absl::Status LineFile::Append(const std::string& record) {
  size_t done = 0;
  while (done < record.size()) {
    const ssize_t count = write(descriptor_, record.data() + done, record.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const std::string reason = count < 0 ? std::strerror(errno) : "nothing was written";
      const bool cut = ftruncate(descriptor_, size_) == 0;
      return DataLoss("cannot write to ", path_, ": ", reason,
                      cut || done == 0 ? "" : "; its last line is incomplete",
                      "; free some space on that disk or choose another output directory");
    }
    done += static_cast<size_t>(count);
  }
  size_ += static_cast<int64_t>(record.size());
  return absl::OkStatus();
}

}  // namespace apogee
