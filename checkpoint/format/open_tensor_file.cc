// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/format/open_tensor_file.h"

#include <cstring>

namespace apogee::checkpoint {
namespace {

absl::StatusOr<std::string> ReadPart(const ReadableFile& file, int64_t offset, int64_t bytes) {
  std::string text(static_cast<size_t>(bytes), '\0');
  APOGEE_RETURN_IF_ERROR(file.Read(offset, std::as_writable_bytes(std::span(text))));
  return text;
}

}  // namespace

absl::StatusOr<OpenTensorFile> OpenTensorFile::Open(FileSystem& files, const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, files.OpenThroughLinks(path));
  return Open(std::shared_ptr<ReadableFile>(std::move(file)));
}

absl::StatusOr<OpenTensorFile> OpenTensorFile::Open(std::shared_ptr<ReadableFile> file) {
  OpenTensorFile open;
  open.file = std::move(file);
  const std::string& path = open.file->path();
  const int64_t bytes = open.file->size();
  // Such a text of about 130 bytes is what a clone without Git LFS has in place of a large file.
  const std::string pointer = "version https://git-lfs.github.com/spec/";
  if (bytes >= static_cast<int64_t>(pointer.size())) {
    APOGEE_ASSIGN_OR_RETURN(const std::string start,
                            ReadPart(*open.file, 0, static_cast<int64_t>(pointer.size())));
    if (start == pointer) {
      return DataLoss(path,
                      ": is a Git LFS pointer, not the data; run \"git lfs pull\" in its folder");
    }
  }
  if (bytes < 8) {
    return DataLoss(path, ": has ", bytes,
                    " bytes; a safetensors file begins with an 8-byte length");
  }
  APOGEE_ASSIGN_OR_RETURN(const std::string length, ReadPart(*open.file, 0, 8));
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, length.data(), 8);
  if (header_bytes > static_cast<uint64_t>(kMaxHeaderBytes) ||
      header_bytes > static_cast<uint64_t>(bytes - 8)) {
    return DataLoss(path, ": byte 0: a header of ", header_bytes, " bytes in a file of ", bytes);
  }
  const auto header = static_cast<int64_t>(header_bytes);
  APOGEE_ASSIGN_OR_RETURN(const std::string json, ReadPart(*open.file, 8, header));
  APOGEE_ASSIGN_OR_RETURN(
      open.header, ParseSafetensorsHeader(json, {.path = path, .data_bytes = bytes - 8 - header}));
  open.data_start = 8 + header;
  return open;
}

absl::StatusOr<std::string> ReadTextFile(FileSystem& files, const std::string& path,
                                         int64_t limit) {
  APOGEE_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, files.OpenThroughLinks(path));
  return ReadText(*file, limit);
}

absl::StatusOr<std::string> ReadText(const ReadableFile& file, int64_t limit) {
  if (file.size() > limit) {
    return DataLoss(file.path(), ": has ", file.size(), " bytes, ", limit, " is the limit");
  }
  return ReadPart(file, 0, file.size());
}

}  // namespace apogee::checkpoint
