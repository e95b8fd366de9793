// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/reshard.h"

#include <algorithm>
#include <set>

#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/checkpoint/files/new_folder.h"
#include "apogee/checkpoint/format/tensor_file.h"
#include "apogee/checkpoint/format/tensor_stream.h"
#include "apogee/checkpoint/hf/hf_config_dtype.h"
#include "apogee/checkpoint/hf/hf_shards.h"
#include "apogee/checkpoint/save_plan.h"

namespace apogee::checkpoint {
namespace {

constexpr const char* kModelPrefix = "model/";
constexpr int64_t kCopiedBytes = int64_t{1} << 20;
static_assert(kCopiedBytes % kDigestBlockBytes == 0);

int64_t NumelOf(const LogicalTensor& tensor) {
  int64_t numel = 1;
  for (const int64_t size : tensor.shape) numel *= size;
  return numel;
}

// Elements [begin, end) of a tensor: one entry of a file.
struct Part {
  std::string name;
  int64_t begin = 0;
  int64_t end = 0;
};

// Returns part `index` of `count` nearly equal parts.
Part Cut(const std::string& name, int64_t numel, int64_t index, int64_t count) {
  const auto begin = [&](int64_t i) { return numel / count * i + std::min(i, numel % count); };
  return {name, begin(index), begin(index + 1)};
}

absl::StatusOr<CheckpointReader> OpenSource(const std::shared_ptr<FileSystem>& files,
                                            const std::string& path) {
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(files, path);
  if (!absl::IsNotFound(reader.status())) return reader;
  const auto names = files->List(path);
  const bool is_checkpoint =
      names.ok() && std::ranges::find(*names, std::string(kManifestName)) != names->end();
  return is_checkpoint ? absl::DataLossError(Message(reader.status())) : reader.status();
}

// Writes one file: entry i is parts[i].
absl::StatusOr<WrittenFile> WriteParts(const CheckpointReader& reader,
                                       const std::vector<Part>& parts, TensorFileWriter& writer) {
  std::vector<std::byte> buffer;
  for (const size_t index : writer.order()) {
    const Part& part = parts[index];
    TensorStream stream(reader, part.name, part.begin, part.end);
    do {
      buffer.resize(static_cast<size_t>(std::min(kCopiedBytes, stream.left())));
      APOGEE_RETURN_IF_ERROR(stream.Fill(buffer));
      APOGEE_RETURN_IF_ERROR(writer.AppendPiece(buffer));
    } while (stream.left() > 0);
  }
  return writer.Finish();
}

// Writes file `index` of `count`, and adds it to the manifest.
absl::Status WriteRankFile(FileSystem& files, const CheckpointReader& reader,
                           const std::string& folder, int64_t index, int64_t count,
                           Manifest& manifest) {
  std::vector<Part> parts;
  std::vector<FileEntry> entries;
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    const Part part = Cut(name, NumelOf(tensor), index, count);
    if (part.begin == part.end) continue;
    parts.push_back(part);
    entries.push_back(
        {.name = name, .dtype = tensor.dtype, .shape = {part.end - part.begin}, .data = {}});
  }
  if (parts.empty()) return absl::OkStatus();
  const std::string file = RankFileName(static_cast<int>(index));
  APOGEE_ASSIGN_OR_RETURN(TensorFileWriter writer,
                          TensorFileWriter::Create(files, JoinPath(folder, file), entries));
  APOGEE_ASSIGN_OR_RETURN(WrittenFile written, WriteParts(reader, parts, writer));
  manifest.files[file] = written.bytes;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    manifest.tensors.at(part.name).slices.push_back(
        {.file = file,
         .entry = part.name,
         .runs = {{.begin = part.begin, .length = part.end - part.begin}},
         .digests = std::move(written.digests[i])});
  }
  return absl::OkStatus();
}

absl::Status WriteCheckpoint(FileSystem& files, const CheckpointReader& reader,
                             const std::string& folder, int64_t count) {
  Manifest manifest{reader.attributes(), {}, {}};
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    manifest.tensors[name] = {tensor.dtype, tensor.shape, {}};
  }
  for (int64_t index = 0; index < count; ++index) {
    APOGEE_RETURN_IF_ERROR(WriteRankFile(files, reader, folder, index, count, manifest));
  }
  const std::string json = FormatManifest(manifest), name = JoinPath(folder, kManifestName);
  // The folder gets its name only if its manifest reads back.
  APOGEE_RETURN_IF_ERROR(ParseManifest(json, name).status());
  return WriteTextFile(files, name, json);
}

absl::Status WriteWeights(FileSystem& files, const CheckpointReader& reader,
                          const std::string& folder, const SaveWeightsOptions& options) {
  const std::string prefix = kModelPrefix;
  std::map<std::string, int64_t> bytes_by_name;
  std::set<std::string> dtypes;
  int64_t total = 0;
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    if (!name.starts_with(prefix) || name.size() == prefix.size()) continue;
    dtypes.insert(tensor.dtype);
    bytes_by_name[name.substr(prefix.size())] = tensor.bytes();
    total += tensor.bytes();
  }
  if (bytes_by_name.empty()) {
    return InvalidArgument(reader.path(), ": has no tensor \"", prefix,
                           "...\", so no weights to export");
  }
  const HfShards shards = SpreadOverFiles(bytes_by_name, ShardBytes(options));
  for (size_t i = 0; i < shards.size(); ++i) {
    std::vector<Part> parts;
    std::vector<FileEntry> entries;
    for (const std::string& name : shards[i]) {
      const LogicalTensor& tensor = reader.manifest().tensors.at(prefix + name);
      parts.push_back({prefix + name, 0, NumelOf(tensor)});
      entries.push_back({.name = name, .dtype = tensor.dtype, .shape = tensor.shape, .data = {}});
    }
    // The library Transformers refuses files that do not name a framework.
    APOGEE_ASSIGN_OR_RETURN(
        TensorFileWriter writer,
        TensorFileWriter::Create(files, JoinPath(folder, HfFileName(i, shards.size())), entries,
                                 {{"format", "pt"}}));
    APOGEE_RETURN_IF_ERROR(WriteParts(reader, parts, writer).status());
  }
  if (shards.size() > 1) {
    APOGEE_RETURN_IF_ERROR(
        WriteTextFile(files, JoinPath(folder, kHfIndexName), FormatHfIndexOf(shards, total)));
  }
  if (options.config_json.empty()) return absl::OkStatus();
  return WriteTextFile(files, JoinPath(folder, "config.json"),
                       WithDType(options.config_json, dtypes));
}

// Makes folder `to`. `write` fills the temporary folder from the tensors whose names begin with
// `prefix`.
template <typename Write>
absl::Status MakeFolderFrom(const std::shared_ptr<FileSystem>& files, const std::string& from,
                            const std::string& to, const std::string& prefix, const Write& write) {
  APOGEE_ASSIGN_OR_RETURN(const CheckpointReader reader, OpenSource(files, from));
  int64_t bytes = 0;
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    if (name.starts_with(prefix)) bytes += tensor.bytes();
  }
  APOGEE_ASSIGN_OR_RETURN(NewFolder folder, NewFolder::Make(*files, to, bytes, nullptr));
  absl::Status status = write(reader, folder.temporary());
  if (status.ok()) status = folder.Publish();
  if (!status.ok()) folder.Discard();
  return status;
}

}  // namespace

absl::Status ReshardCheckpoint(const std::shared_ptr<FileSystem>& files, const std::string& from,
                               const std::string& to, const ReshardOptions& options) {
  if (options.num_files < 1 || options.num_files > kMaxReshardFiles) {
    return InvalidArgument("reshard: the number of files must be from 1 to ", kMaxReshardFiles,
                           ", got ", options.num_files);
  }
  return MakeFolderFrom(files, from, to, /*prefix=*/"",
                        [&](const CheckpointReader& reader, const std::string& folder) {
                          return WriteCheckpoint(*files, reader, folder, options.num_files);
                        });
}

absl::Status ExportModelWeights(const std::shared_ptr<FileSystem>& files, const std::string& from,
                                const std::string& to, const SaveWeightsOptions& options) {
  APOGEE_RETURN_IF_ERROR(CheckShardSize(options.size_per_shard_mb));
  return MakeFolderFrom(files, from, to, kModelPrefix,
                        [&](const CheckpointReader& reader, const std::string& folder) {
                          return WriteWeights(*files, reader, folder, options);
                        });
}

}  // namespace apogee::checkpoint
