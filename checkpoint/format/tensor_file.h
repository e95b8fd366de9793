// SPDX-License-Identifier: Apache-2.0

// TensorFileWriter: writes safetensors files and returns digests of the data.
//
//   std::vector<FileEntry> entries = {
//       {.name = "w", .dtype = "F32", .shape = {2, 3}, .data = bytes}};
//   APOGEE_ASSIGN_OR_RETURN(WrittenFile file,
//                           WriteSafetensors(files, "dir/a.safetensors", entries));
//   file.digests[0];          // of the blocks of "w": Slice::digests
//
//   // Tensor by tensor, if the data is not in memory all at once:
//   APOGEE_ASSIGN_OR_RETURN(auto writer, TensorFileWriter::Create(files, path, entries));
//   for (size_t i : writer.order()) APOGEE_RETURN_IF_ERROR(writer.Append(DataOf(i)));
//   APOGEE_RETURN_IF_ERROR(writer.Finish().status());
//
// The file is the format's canonical one: entries by the size of their elements, largest first,
// then by name; the header padded with spaces to a multiple of 8 bytes. The file is synced and
// closed; its folder is not synced.
#ifndef APOGEE_CHECKPOINT_FORMAT_TENSOR_FILE_H_
#define APOGEE_CHECKPOINT_FORMAT_TENSOR_FILE_H_

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apogee/checkpoint/files/file_system.h"
#include "apogee/tensor/tensor.h"

namespace apogee::checkpoint {

struct FileEntry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // as many bytes as dtype and shape say
};

struct WrittenFile {
  int64_t bytes = 0;
  std::vector<std::vector<uint64_t>> digests;  // by entry, in the order given
};

class TensorFileWriter {
 public:
  // Writes the header. Does not read the entries' `data`. Throws Error for unknown dtypes.
  static absl::StatusOr<TensorFileWriter> Create(
      FileSystem& files, const std::string& path, std::span<const FileEntry> entries,
      const std::map<std::string, std::string>& metadata = {});

  // Indices of the entries, in the order in which their data must come.
  const std::vector<size_t>& order() const { return order_; }
  // Appends all bytes of the next entry. Throws Error for another number of bytes.
  absl::Status Append(std::span<const std::byte> data);
  // Appends the next bytes of the current entry; after its last byte the next entry becomes the
  // current one. Throws Error for more bytes than the entry has, or if a piece other than its last
  // is not a multiple of kDigestBlockBytes.
  absl::Status AppendPiece(std::span<const std::byte> data);
  // Call it after the last entry.
  absl::StatusOr<WrittenFile> Finish();

 private:
  std::unique_ptr<WritableFile> file_;
  std::vector<size_t> order_;
  std::vector<int64_t> bytes_;  // of each entry
  size_t next_ = 0;             // in order_
  int64_t filled_ = 0;          // bytes written of the current entry
  WrittenFile written_;
};

absl::StatusOr<WrittenFile> WriteSafetensors(
    FileSystem& files, const std::string& path, std::span<const FileEntry> entries,
    const std::map<std::string, std::string>& metadata = {});

// XXH3-64 of each block of kDigestBlockBytes.
std::vector<uint64_t> BlockDigests(std::span<const std::byte> data);

// Convert between kF32 and "F32"; nothing for dtypes that Tensor lacks.
std::string SafetensorsDType(DType dtype);
std::optional<DType> TensorDType(const std::string& dtype);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_FORMAT_TENSOR_FILE_H_
