// SPDX-License-Identifier: Apache-2.0

// OpenTensorFile: an open safetensors file with a checked header, read through a FileSystem.
//
//   APOGEE_ASSIGN_OR_RETURN(OpenTensorFile file, OpenTensorFile::Open(files, "dir/a.safetensors"));
//   const SafetensorsEntry& w = file.header.entries.at("w");
//   APOGEE_RETURN_IF_ERROR(file.file->Read(file.data_start + w.begin, bytes));
//
// Follows links, because the hub's cache consists of them. Errors name the file and the byte:
// NotFound, InvalidArgument if it is not a regular file, DataLoss if it breaks a rule of the
// format.
#ifndef APOGEE_CHECKPOINT_FORMAT_OPEN_TENSOR_FILE_H_
#define APOGEE_CHECKPOINT_FORMAT_OPEN_TENSOR_FILE_H_

#include <memory>
#include <string>

#include "apogee/checkpoint/files/file_system.h"
#include "apogee/checkpoint/format/safetensors_header.h"

namespace apogee::checkpoint {

struct OpenTensorFile {
  static absl::StatusOr<OpenTensorFile> Open(FileSystem& files, const std::string& path);

  static absl::StatusOr<OpenTensorFile> Open(std::shared_ptr<ReadableFile> file);

  std::shared_ptr<ReadableFile> file;
  SafetensorsHeader header;
  int64_t data_start = 0;  // bytes before the data
};

// Reads a whole file of at most `limit` bytes; DataLoss for a longer one. The form with a path
// follows links.
absl::StatusOr<std::string> ReadTextFile(FileSystem& files, const std::string& path, int64_t limit);
absl::StatusOr<std::string> ReadText(const ReadableFile& file, int64_t limit);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_FORMAT_OPEN_TENSOR_FILE_H_
