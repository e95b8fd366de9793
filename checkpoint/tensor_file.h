// Writes safetensors files, with digests of what was written.
//
//   std::vector<FileEntry> entries = {{.name = "w", .dtype = "F32", .shape = {2, 3}, .data =
//   bytes}}; APOGEE_ASSIGN_OR_RETURN(WrittenFile file, WriteSafetensors(files, "dir/a.safetensors",
//   entries)); file.digests[0];          // of the blocks of "w": Slice::digests
//
// The file is the format's canonical one: entries by size of their elements, largest first, then by
// name; the header padded with spaces to a multiple of 8 bytes. It is synced and closed; its folder
// is not synced.
#ifndef APOGEE_CHECKPOINT_TENSOR_FILE_H_
#define APOGEE_CHECKPOINT_TENSOR_FILE_H_

#include <map>
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
