// SPDX-License-Identifier: Apache-2.0

// OutputFile: a file that is written under a temporary name, ".tmp-NAME" beside it.
//
//   APOGEE_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Open("dir/corpus.bin", /*keep=*/0));
//   APOGEE_RETURN_IF_ERROR(file.Append(bytes));
//   APOGEE_RETURN_IF_ERROR(file.Sync());
//   APOGEE_RETURN_IF_ERROR(file.Publish());       // now dir/corpus.bin exists
//
// The temporary name is always the same, so that a later process can continue the file. Two
// processes cannot write it at the same time.
#ifndef APOGEE_DATA_TOKEN_FILES_OUTPUT_FILE_H_
#define APOGEE_DATA_TOKEN_FILES_OUTPUT_FILE_H_

#include <vector>

#include "apogee/core/process/raw_file.h"

namespace apogee::data {

class OutputFile {
 public:
  // Keeps the first `keep` bytes that an earlier process wrote, or returns DataLoss if there are
  // fewer. AlreadyExists if there is something at `path`; FailedPrecondition if another process
  // writes the file.
  static absl::StatusOr<OutputFile> Open(const std::string& path, int64_t keep);
  OutputFile(OutputFile&& other) noexcept;
  // Removes the temporary file unless it was published.
  ~OutputFile();

  const std::string& path() const { return path_; }
  // Gathers small pieces.
  absl::Status Append(std::span<const std::byte> bytes);
  absl::Status ReadBack(int64_t offset, std::span<std::byte> to);
  // Replaces bytes at the beginning.
  absl::Status WriteHead(std::span<const std::byte> bytes);
  // What was appended survives a power cut, except its name.
  absl::Status Sync();
  // Gives the file its name. AlreadyExists if something has it by now.
  absl::Status Publish();
  // Removes the published file again, because a file that belongs to it failed.
  void Withdraw();

 private:
  OutputFile(std::string path, Descriptor file, int64_t bytes)
      : path_(std::move(path)), file_(std::move(file)), written_(bytes), started_(bytes) {}
  absl::Status Flush();

  std::string path_;
  Descriptor file_;
  bool named_ = false;
  int64_t written_, started_;  // bytes that the file has, and that are on their way to the disk
  std::vector<std::byte> buffer_;
};

// "dir/.tmp-corpus.bin" for "dir/corpus.bin".
std::string TemporaryOf(const std::string& path);
// AlreadyExists if there is something at `path`.
absl::Status CheckFree(const std::string& path);
// Makes names in the folder of `path` survive a power cut.
absl::Status SyncFolderOf(const std::string& path);

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKEN_FILES_OUTPUT_FILE_H_
