// SPDX-License-Identifier: Apache-2.0

// LineFile: an output file that only ever holds whole records. Each Append is one write(2) to a
// file opened for appending, so a reader, or a crash, sees a record complete or not at all.
//
//   APOGEE_ASSIGN_OR_RETURN(std::unique_ptr<LineFile> file, LineFile::Create("out/metrics.jsonl"));
//   APOGEE_RETURN_IF_ERROR(file->Append("{\"step\":1}\n"));
//
// Writes only to regular files: it does not follow a symbolic link, and refuses a FIFO or a device
// at once. Errors are a Status that names the file. A failed Append removes the part of the record
// that was written.
#ifndef APOGEE_BOOSTER_METRICS_LINE_FILE_H_
#define APOGEE_BOOSTER_METRICS_LINE_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "apogee/core/status.h"

namespace apogee {

class LineFile {
 public:
  // Empties the file if it exists.
  static absl::StatusOr<std::unique_ptr<LineFile>> Create(const std::string& path);
  // Continues after the existing contents. Makes the file if it is missing.
  static absl::StatusOr<std::unique_ptr<LineFile>> Continue(const std::string& path);
  // Gives the file this text alone. A reader meanwhile sees the old text or the new one, and an
  // error leaves the old one.
  static absl::Status Replace(const std::string& path, const std::string& text);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  absl::Status Append(const std::string& record);
  const std::string& path() const { return path_; }

 private:
  static absl::StatusOr<std::unique_ptr<LineFile>> Open(const std::string& path);
  LineFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_;
  int64_t size_ = 0;
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_METRICS_LINE_FILE_H_
