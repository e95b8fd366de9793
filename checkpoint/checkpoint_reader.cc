// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <cstring>

#include "apogee/checkpoint/format/tensor_file.h"

namespace apogee::checkpoint {
namespace {

// Larger than the manifest of a checkpoint with a million slices.
constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;

// Bytes read at once, in whole blocks: few enough to be still in the cache for the digests.
constexpr int64_t kReadBytes = 8 * kDigestBlockBytes;

// If something else is in the place of a file, that is damage, like its absence.
absl::StatusOr<std::shared_ptr<ReadableFile>> OpenOwn(FileSystem& files, const std::string& path) {
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = files.Open(path);
  if (absl::IsInvalidArgument(file.status())) return absl::DataLossError(Message(file.status()));
  APOGEE_RETURN_IF_ERROR(file.status());
  return std::shared_ptr<ReadableFile>(*std::move(file));
}

}  // namespace

absl::StatusOr<CheckpointReader> CheckpointReader::Open(std::shared_ptr<FileSystem> files,
                                                        const std::string& path) {
  CheckpointReader reader;
  reader.files_ = std::move(files);
  reader.path_ = path;
  const std::string name = JoinPath(path, kManifestName);
  APOGEE_ASSIGN_OR_RETURN(FilePtr file, OpenOwn(*reader.files_, name));
  APOGEE_ASSIGN_OR_RETURN(const std::string json, ReadText(*file, kMaxManifestBytes));
  file = nullptr;  // close it before others are opened
  APOGEE_ASSIGN_OR_RETURN(reader.manifest_, ParseManifest(json, name));
  APOGEE_RETURN_IF_ERROR(reader.OpenFiles());
  APOGEE_RETURN_IF_ERROR(reader.CheckEntries());
  return reader;
}

absl::Status CheckpointReader::OpenFiles() {
  for (const auto& [name, bytes] : manifest_.files) {
    APOGEE_ASSIGN_OR_RETURN(const FilePtr file, FileOf(name));
    if (file->size() != bytes) {
      return DataLoss(file->path(), ": has ", file->size(), " bytes, the manifest says ", bytes);
    }
    APOGEE_ASSIGN_OR_RETURN(OpenTensorFile open, OpenTensorFile::Open(file));
    rank_files_[name] = {std::move(open.header), open.data_start};
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointReader::FilePtr> CheckpointReader::FileOf(const std::string& name) const {
  const std::lock_guard lock(recent_->mutex);
  auto& files = recent_->files;
  const auto found = std::ranges::find(files, name, &std::pair<std::string, FilePtr>::first);
  if (found != files.end()) {
    std::rotate(files.begin(), found, found + 1);
    return files.front().second;
  }
  if (files.size() == kMaxOpenFiles) files.pop_back();
  APOGEE_ASSIGN_OR_RETURN(FilePtr file, OpenOwn(*files_, JoinPath(path_, name)));
  files.emplace(files.begin(), name, file);
  return file;
}

// Checks that every slice is an entry of its file, with its dtype and size.
absl::Status CheckpointReader::CheckEntries() const {
  for (const auto& [name, tensor] : manifest_.tensors) {
    for (const Slice& slice : tensor.slices) {
      const auto& entries = rank_files_.at(slice.file).header.entries;
      const auto entry = entries.find(slice.entry);
      const std::string where = JoinPath(path_, slice.file);
      if (entry == entries.end()) {
        return DataLoss(where, ": has no entry \"", slice.entry, "\" of tensor \"", name, "\"");
      }
      const int64_t bytes = slice.numel() * SafetensorsDTypeSize(tensor.dtype);
      if (entry->second.dtype != tensor.dtype || entry->second.end - entry->second.begin != bytes) {
        return DataLoss(where, ": entry \"", slice.entry, "\" is ", entry->second.dtype, " of ",
                        entry->second.end - entry->second.begin, " bytes, the manifest says ",
                        tensor.dtype, " of ", bytes);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::Read(const std::string& name, const Layout& layout,
                                    const Tensor& to) const {
  const auto found = manifest_.tensors.find(name);
  if (found == manifest_.tensors.end()) {
    return NotFound(path_, ": there is no tensor \"", name, "\"");
  }
  const LogicalTensor& tensor = found->second;
  const Shape& shape = layout.logical_shape();
  std::vector<int64_t> sizes;
  for (int dim = 0; dim < shape.rank(); ++dim) sizes.push_back(shape[dim]);
  const std::string dtype = SafetensorsDType(to.dtype());
  if (tensor.dtype != dtype || tensor.shape != sizes) {
    return InvalidArgument(path_, ": tensor \"", name, "\" is ", tensor.dtype, " ",
                           Shape(tensor.shape), ", wanted ", dtype, " ", shape);
  }
  APOGEE_CHECK(to.is_contiguous() && to.numel() >= layout.local_numel(), "read \"", name,
               "\": needs contiguous room for ", layout.local_numel(), " elements");
  // For a GPU tensor, a copy of it: elements that are not read (padding) keep their values.
  const Tensor host = to.Detach().To(HostOf(to.context()), MemoryCategory::kCheckpoint);
  for (const Slice& slice : tensor.slices) {
    APOGEE_RETURN_IF_ERROR(
        ReadSlice(name, tensor, slice, layout, static_cast<std::byte*>(host.raw())));
  }
  if (host.storage() != to.storage()) to.CopyFrom(host);
  return absl::OkStatus();
}

// Reads the runs that slice and target share, block by block of the slice. A block that goes whole
// to one place is read directly there.
absl::Status CheckpointReader::ReadSlice(const std::string& name, const LogicalTensor& tensor,
                                         const Slice& slice, const Layout& layout,
                                         std::byte* to) const {
  struct Copy {
    int64_t from, to, bytes;
  };
  const int64_t element = SafetensorsDTypeSize(tensor.dtype);
  std::vector<Copy> copies;
  const Layout held(layout.logical_shape(), {.segments = SegmentsOf(slice.runs)});
  ForEachCommonRun(held, layout, [&](int64_t from, int64_t target, int64_t count) {
    copies.push_back({from * element, target * element, count * element});
  });
  std::ranges::sort(copies, {}, &Copy::from);
  const int64_t bytes = slice.numel() * element;
  std::vector<std::byte> buffer;
  int64_t loaded = -1;  // the block in the buffer
  for (const Copy& copy : copies) {
    for (int64_t done = 0, count = 0; done < copy.bytes; done += count) {
      const int64_t at = copy.from + done, block = at / kDigestBlockBytes;
      const int64_t begin = block * kDigestBlockBytes, left = copy.bytes - done;
      std::byte* const target = to + copy.to + done;
      // The last block of a slice may be shorter.
      const int64_t whole = at + left == bytes ? left : left - left % kDigestBlockBytes;
      if (at == begin && whole > 0) {
        count = std::min(whole, kReadBytes);
        APOGEE_RETURN_IF_ERROR(
            ReadBlocks(name, slice, block, {target, static_cast<size_t>(count)}));
        continue;
      }
      const int64_t end = std::min(begin + kDigestBlockBytes, bytes);
      if (block != loaded) {
        buffer.resize(static_cast<size_t>(end - begin));
        APOGEE_RETURN_IF_ERROR(ReadBlocks(name, slice, block, buffer));
        loaded = block;
      }
      count = std::min(end - at, left);
      std::memcpy(target, buffer.data() + (at - begin), static_cast<size_t>(count));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::ReadBlocks(const std::string& name, const Slice& slice,
                                          int64_t block, std::span<std::byte> to) const {
  const RankFile& rank_file = rank_files_.at(slice.file);
  int64_t begin = rank_file.data_start + rank_file.header.entries.at(slice.entry).begin +
                  block * kDigestBlockBytes;
  const absl::StatusOr<FilePtr> file = FileOf(slice.file);
  // The file existed when the checkpoint was opened.
  if (absl::IsNotFound(file.status())) return absl::DataLossError(Message(file.status()));
  APOGEE_RETURN_IF_ERROR(file.status());
  APOGEE_RETURN_IF_ERROR((*file)->Read(begin, to));
  for (const uint64_t digest : BlockDigests(to)) {
    const int64_t end =
        std::min(begin + kDigestBlockBytes, begin + static_cast<int64_t>(to.size()));
    if (digest != slice.digests[static_cast<size_t>(block)]) {
      return DataLoss((*file)->path(), ": tensor \"", name, "\": bytes [", begin, ", ", end,
                      ") are not those that were saved (their digest differs)");
    }
    to = to.subspan(static_cast<size_t>(end - begin));
    begin = end;
    ++block;
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::Verify() const {
  std::vector<std::byte> buffer;
  for (const auto& [name, tensor] : manifest_.tensors) {
    for (const Slice& slice : tensor.slices) {
      const int64_t bytes = slice.numel() * SafetensorsDTypeSize(tensor.dtype);
      for (int64_t begin = 0; begin < bytes; begin += kReadBytes) {
        buffer.resize(static_cast<size_t>(std::min(kReadBytes, bytes - begin)));
        APOGEE_RETURN_IF_ERROR(ReadBlocks(name, slice, begin / kDigestBlockBytes, buffer));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace apogee::checkpoint
