// SPDX-License-Identifier: Apache-2.0

// CheckpointReader: reads checkpoints that SaveCheckpoint wrote, under any layout.
//
//   APOGEE_ASSIGN_OR_RETURN(auto reader, CheckpointReader::Open(RealFileSystem(), "run/step-100"));
//   reader.attributes().at("step");
//   APOGEE_RETURN_IF_ERROR(reader.Read("model/w", view.layout(), view.value()));   // my elements
//
// Open checks the manifest, and that every listed file exists with its size. Read reads only the
// blocks that this rank needs and checks their digests: a flipped byte is an error that names file,
// tensor and bytes. At most kMaxOpenFiles are open at a time, so a checkpoint may have more files
// than a process may open. Not collective; several ranks may read one checkpoint.
#ifndef APOGEE_CHECKPOINT_CHECKPOINT_READER_H_
#define APOGEE_CHECKPOINT_CHECKPOINT_READER_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "apogee/checkpoint/files/file_system.h"
#include "apogee/checkpoint/format/manifest.h"
#include "apogee/checkpoint/format/open_tensor_file.h"
#include "apogee/layout/layout.h"
#include "apogee/tensor/tensor.h"

namespace apogee::checkpoint {

// Per reader, because many ranks may share a process.
inline constexpr size_t kMaxOpenFiles = 32;

class CheckpointReader {
 public:
  // NotFound without a manifest; Unimplemented for a newer format; DataLoss for damage, including a
  // link, pipe, folder or device in the place of a file.
  static absl::StatusOr<CheckpointReader> Open(std::shared_ptr<FileSystem> files,
                                               const std::string& path);

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  const std::map<std::string, std::string>& attributes() const { return manifest_.attributes; }
  bool contains(const std::string& name) const { return manifest_.tensors.contains(name); }

  // Fills the first local_numel() elements of `to` with the elements of tensor `name` that `layout`
  // names. `to`: host memory, in the saved dtype. InvalidArgument, with `to` unchanged, for another
  // shape or dtype; DataLoss, with any values in `to`, for damage.
  absl::Status Read(const std::string& name, const Layout& layout, const Tensor& to) const;
  // Fills `to` with whole blocks of a slice of tensor `name`, from `block` on; DataLoss if a digest
  // differs.
  absl::Status ReadBlocks(const std::string& name, const Slice& slice, int64_t block,
                          std::span<std::byte> to) const;
  // Checks the digests of everything.
  absl::Status Verify() const;

 private:
  using FilePtr = std::shared_ptr<ReadableFile>;
  struct Recent {
    std::mutex mutex;
    std::vector<std::pair<std::string, FilePtr>> files;  // by name, most recently used first
  };
  struct RankFile {
    SafetensorsHeader header;
    int64_t data_start = 0;
  };

  absl::Status OpenFiles();
  // Returns the open file, and opens it again if other files have displaced it.
  absl::StatusOr<FilePtr> FileOf(const std::string& name) const;
  absl::Status CheckEntries() const;
  absl::Status ReadSlice(const std::string& name, const LogicalTensor& tensor, const Slice& slice,
                         const Layout& layout, std::byte* to) const;

  std::shared_ptr<FileSystem> files_;
  std::string path_;
  Manifest manifest_;
  std::map<std::string, RankFile> rank_files_;  // by name
  std::shared_ptr<Recent> recent_ = std::make_shared<Recent>();
};

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_CHECKPOINT_READER_H_
