// SPDX-License-Identifier: Apache-2.0

// Writes safetensors files, with digests of what was written.
//
//   std::vector<FileEntry> entries = {{.name = "w", .dtype = "F32", .shape = {2, 3}, .data =
//   bytes}}; APOGEE_ASSIGN_OR_RETURN(WrittenFile file, WriteSafetensors(files, "dir/a.safetensors",
//   entries)); file.digests[0];          // of the blocks of "w": Slice::digests
//
//   // Tensor by tensor, of data that is not there all at once:
//   APOGEE_ASSIGN_OR_RETURN(auto writer, TensorFileWriter::Create(files, path, entries));
//   for (size_t i : writer.order()) APOGEE_RETURN_IF_ERROR(writer.Append(DataOf(i)));
//   APOGEE_RETURN_IF_ERROR(writer.Finish().status());
//
// The file is the format's canonical one: entries by size of their elements, largest first, then by
// name; the header padded with spaces to a multiple of 8 bytes. It is synced and closed; its folder
// is not synced.
#ifndef APOGEE_CHECKPOINT_TENSOR_FILE_H_
#define APOGEE_CHECKPOINT_TENSOR_FILE_H_

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apogee/checkpoint/file_system.h"
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
  std::vector<std::vector<uint64_t>> digests;  // of each entry, in the order given
};

class TensorFileWriter {
 public:
  // Writes the header; the entries' `data` is not looked at. Throws Error for unknown dtypes.
  static absl::StatusOr<TensorFileWriter> Create(
      FileSystem& files, const std::string& path, std::span<const FileEntry> entries,
      const std::map<std::string, std::string>& metadata = {});

  // Indices of the entries, in the order in which their data must come.
  const std::vector<size_t>& order() const { return order_; }
  // All bytes of the next entry. Throws Error for another number of them.
  absl::Status Append(std::span<const std::byte> data);
  // The next bytes of the entry at hand; its last one makes the next entry that. Throws Error for
  // more than the entry has, or when a piece that is not its last is not whole blocks of
  // kDigestBlockBytes.
  absl::Status AppendPiece(std::span<const std::byte> data);
  // After the last one.
  absl::StatusOr<WrittenFile> Finish();

 private:
  std::unique_ptr<WritableFile> file_;
  std::vector<size_t> order_;
  std::vector<int64_t> bytes_;  // of each entry
  size_t next_ = 0;             // in order_
  int64_t filled_ = 0;          // bytes of the entry at hand
  WrittenFile written_;
};

absl::StatusOr<WrittenFile> WriteSafetensors(
    FileSystem& files, const std::string& path, std::span<const FileEntry> entries,
    const std::map<std::string, std::string>& metadata = {});

// XXH3-64 of each block of kDigestBlockBytes.
std::vector<uint64_t> BlockDigests(std::span<const std::byte> data);

// "F32" for kF32, and back; nothing for dtypes that Tensor lacks.
std::string SafetensorsDType(DType dtype);
std::optional<DType> TensorDType(const std::string& dtype);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_TENSOR_FILE_H_
