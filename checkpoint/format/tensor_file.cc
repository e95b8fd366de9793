// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/format/tensor_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "apogee/checkpoint/format/manifest.h"
#include "apogee/checkpoint/format/safetensors_header.h"

namespace apogee::checkpoint {
namespace {

const std::vector<std::pair<std::string, DType>>& DTypes() {
  static const auto& dtypes = *new std::vector<std::pair<std::string, DType>>{
      {"F64", DType::kF64},       {"F32", DType::kF32}, {"F16", DType::kF16},
      {"BF16", DType::kBF16},     {"I64", DType::kI64}, {"I32", DType::kI32},
      {"U8", DType::kU8},         {"I8", DType::kI8},   {"F8_E4M3", DType::kF8E4M3},
      {"F8_E5M2", DType::kF8E5M2}};
  return dtypes;
}

int64_t BytesOf(const FileEntry& entry) {
  return std::accumulate(entry.shape.begin(), entry.shape.end(), SafetensorsDTypeSize(entry.dtype),
                         std::multiplies<>());
}

std::vector<size_t> CanonicalOrder(std::span<const FileEntry> entries) {
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) {
    const int64_t a_size = SafetensorsDTypeSize(entries[a].dtype);
    const int64_t b_size = SafetensorsDTypeSize(entries[b].dtype);
    return a_size != b_size ? a_size > b_size : entries[a].name < entries[b].name;
  });
  return order;
}

std::string Header(std::span<const FileEntry> entries, std::span<const size_t> order,
                   const std::map<std::string, std::string>& metadata) {
  // Writes field by field, because an ordered object searches all of its fields for each new one.
  using Json = nlohmann::ordered_json;
  std::string text = "{";
  const auto add = [&text](const std::string& name, const Json& value) {
    text += (text.size() > 1 ? "," : "") + Json(name).dump() + ":" + value.dump();
  };
  if (!metadata.empty()) add("__metadata__", metadata);
  int64_t at = 0;
  for (const size_t i : order) {
    const FileEntry& entry = entries[i];
    const int64_t bytes = BytesOf(entry);
    add(entry.name,
        {{"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {at, at + bytes}}});
    at += bytes;
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

std::string SafetensorsDType(DType dtype) {
  for (const auto& [name, known] : DTypes()) {
    if (known == dtype) return name;
  }
  Throw(internal::Concat("safetensors has no name for dtype ", DTypeName(dtype)));
}

std::optional<DType> TensorDType(const std::string& dtype) {
  for (const auto& [name, known] : DTypes()) {
    if (name == dtype) return known;
  }
  return std::nullopt;
}

std::vector<uint64_t> BlockDigests(std::span<const std::byte> data) {
  std::vector<uint64_t> digests;
  while (!data.empty()) {
    const auto block = data.first(std::min<size_t>(kDigestBlockBytes, data.size()));
    digests.push_back(XXH3_64bits(block.data(), block.size()));
    data = data.subspan(block.size());
  }
  return digests;
}

absl::StatusOr<TensorFileWriter> TensorFileWriter::Create(
    FileSystem& files, const std::string& path, std::span<const FileEntry> entries,
    const std::map<std::string, std::string>& metadata) {
  TensorFileWriter writer;
  for (const FileEntry& entry : entries) {
    APOGEE_CHECK(SafetensorsDTypeSize(entry.dtype) > 0, "safetensors: tensor \"", entry.name,
                 "\" has the unknown dtype \"", entry.dtype, "\"");
    writer.bytes_.push_back(BytesOf(entry));
  }
  writer.order_ = CanonicalOrder(entries);
  writer.written_.digests.resize(entries.size());
  const std::string header = Header(entries, writer.order_, metadata);
  if (static_cast<int64_t>(header.size()) > kMaxHeaderBytes) {
    return InvalidArgument(path, ": a header of ", header.size(), " bytes, ", kMaxHeaderBytes,
                           " is the format's limit; write several files");
  }
  APOGEE_ASSIGN_OR_RETURN(writer.file_, files.Create(path));
  const auto length = static_cast<uint64_t>(header.size());
  APOGEE_RETURN_IF_ERROR(writer.file_->Append(std::as_bytes(std::span(&length, 1))));
  APOGEE_RETURN_IF_ERROR(writer.file_->Append(std::as_bytes(std::span(header))));
  writer.written_.bytes = 8 + static_cast<int64_t>(header.size());
  return writer;
}

absl::Status TensorFileWriter::Append(std::span<const std::byte> data) {
  APOGEE_CHECK(next_ < order_.size(), "safetensors: more data than entries");
  const size_t entry = order_[next_];
  APOGEE_CHECK(filled_ == 0 && bytes_[entry] == static_cast<int64_t>(data.size()),
               "safetensors: entry ", entry, " of ", bytes_[entry], " bytes was given ",
               data.size());
  constexpr size_t kPiece = size_t{1} << 22;  // computes digests while the piece is in the cache
  do {
    const auto piece = data.first(std::min(kPiece, data.size()));
    APOGEE_RETURN_IF_ERROR(AppendPiece(piece));
    data = data.subspan(piece.size());
  } while (!data.empty());
  return absl::OkStatus();
}

absl::Status TensorFileWriter::AppendPiece(std::span<const std::byte> data) {
  APOGEE_CHECK(next_ < order_.size(), "safetensors: more data than entries");
  const size_t entry = order_[next_];
  const auto size = static_cast<int64_t>(data.size());
  const int64_t left = bytes_[entry] - filled_;
  APOGEE_CHECK(size <= left && (size == left || size % kDigestBlockBytes == 0),
               "safetensors: entry ", entry, " lacks ", left, " bytes and was given ", size,
               "; a piece is whole blocks of ", kDigestBlockBytes, " or the last one");
  const std::vector<uint64_t> digests = BlockDigests(data);
  std::vector<uint64_t>& all = written_.digests[entry];
  all.insert(all.end(), digests.begin(), digests.end());
  if (size > 0) APOGEE_RETURN_IF_ERROR(file_->Append(data));
  written_.bytes += size;
  filled_ += size;
  if (size < left) return absl::OkStatus();
  ++next_;
  filled_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<WrittenFile> TensorFileWriter::Finish() {
  APOGEE_CHECK(next_ == order_.size(), "safetensors: ", order_.size() - next_,
               " entries were given no data");
  APOGEE_RETURN_IF_ERROR(file_->Sync());
  APOGEE_RETURN_IF_ERROR(file_->Close());
  return std::move(written_);
}

absl::StatusOr<WrittenFile> WriteSafetensors(FileSystem& files, const std::string& path,
                                             std::span<const FileEntry> entries,
                                             const std::map<std::string, std::string>& metadata) {
  for (const FileEntry& entry : entries) {
    const int64_t bytes = BytesOf(entry);
    APOGEE_CHECK(bytes == static_cast<int64_t>(entry.data.size()), "safetensors: tensor \"",
                 entry.name, "\" of ", bytes, " bytes was given ", entry.data.size());
  }
  APOGEE_ASSIGN_OR_RETURN(TensorFileWriter writer,
                          TensorFileWriter::Create(files, path, entries, metadata));
  for (const size_t i : writer.order()) APOGEE_RETURN_IF_ERROR(writer.Append(entries[i].data));
  return writer.Finish();
}

}  // namespace apogee::checkpoint
