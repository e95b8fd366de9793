#include "apogee/checkpoint/hf_weights.h"

#include <algorithm>
#include <optional>
#include <set>

#include "apogee/checkpoint/agreement.h"
#include "apogee/checkpoint/hf_index.h"
#include "apogee/checkpoint/hf_names.h"
#include "apogee/checkpoint/tensor_file.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee::checkpoint {
namespace {

// What is read at once of a tensor, and so the room that conversion takes.
constexpr int64_t kWindowBytes = int64_t{1} << 20;

std::vector<int64_t> SizesOf(const Shape& shape) {
  std::vector<int64_t> sizes;
  for (int dim = 0; dim < shape.rank(); ++dim) sizes.push_back(shape[dim]);
  return sizes;
}

bool Converts(const std::string& from, DType to) {
  const std::optional<DType> dtype = TensorDType(from);
  return dtype && (*dtype == to || (IsFloat(*dtype) && IsFloat(to)));
}

// What would keep `targets` from being read.
struct Fit {
  LoadReport report;
  HfNames names;
  std::string problems;  // of shapes and dtypes
};

absl::StatusOr<Fit> Compare(const HfWeights& weights, const std::vector<TensorPart>& targets,
                            const std::string& path) {
  Fit fit;
  std::set<std::string> asked, in_files;
  for (const TensorPart& target : targets) asked.insert(target.name);
  for (const auto& [name, place] : weights.tensors()) in_files.insert(name);
  APOGEE_ASSIGN_OR_RETURN(fit.names, MatchHfNames(in_files, asked, path));
  std::set<std::string> known(fit.names.buffers.begin(), fit.names.buffers.end());
  std::set<const void*> found;  // memory that some name fills
  for (const TensorPart& target : targets) {
    known.insert(fit.names.InFiles(target.name));
    if (in_files.contains(fit.names.InFiles(target.name))) found.insert(target.value.raw());
  }
  std::set<std::string> seen;
  for (const TensorPart& target : targets) {
    const auto there = weights.tensors().find(fit.names.InFiles(target.name));
    if (there == weights.tensors().end()) {
      if (!found.contains(target.value.raw()) && seen.insert(target.name).second) {
        fit.report.missing.push_back(target.name);
      }
      continue;
    }
    const SafetensorsEntry& entry = *there->second.entry;
    const Shape& shape = target.layout.logical_shape();
    const bool same_shape = entry.shape == SizesOf(shape);
    if (same_shape && Converts(entry.dtype, target.value.dtype())) continue;
    if (!seen.insert(target.name).second) continue;
    std::string sizes;
    for (const int64_t size : entry.shape)
      sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
    fit.problems += internal::Concat("\n  ", same_shape ? "dtype" : "shape", " of \"", target.name,
                                     "\": is ", entry.dtype, " [", sizes, "], wanted ",
                                     SafetensorsDType(target.value.dtype()), " ", shape);
  }
  for (const std::string& name : in_files) {
    if (!known.contains(name)) fit.report.unexpected.push_back(name);
  }
  fit.report.buffers = fit.names.buffers;
  fit.report.prefix = fit.names.prefix;
  return fit;
}

absl::Status CheckFit(const Fit& fit, const std::string& path, bool strict) {
  std::string problems;
  if (strict) {
    for (const std::string& name : fit.report.missing) problems += "\n  missing \"" + name + "\"";
    for (const std::string& name : fit.report.unexpected) {
      problems += "\n  unexpected \"" + name + "\"";
    }
  }
  problems += fit.problems;
  return problems.empty() ? absl::OkStatus()
                          : InvalidArgument(path, ": the weights do not fit this model:", problems);
}

absl::Status ReadAll(const HfWeights& weights, const HfNames& names,
                     const std::vector<TensorPart>& targets) {
  for (const TensorPart& target : targets) {
    const std::string name = names.InFiles(target.name);
    if (!weights.tensors().contains(name)) continue;
    APOGEE_RETURN_IF_ERROR(weights.Read(name, target.layout, target.value));
  }
  return absl::OkStatus();
}

// Both ways: each tensor is in the file that the index says, and each file holds no other ones.
absl::Status CheckIndex(const HfIndex& index,
                        const std::map<std::string, std::shared_ptr<OpenTensorFile>>& files) {
  for (const auto& [name, file] : index.weight_map) {
    const OpenTensorFile& open = *files.at(file);
    if (!open.header.entries.contains(name)) {
      return DataLoss(open.file->path(), ": has no tensor \"", name,
                      "\", which the index says is there");
    }
  }
  for (const auto& [file, open] : files) {
    for (const auto& [name, entry] : open->header.entries) {
      const auto place = index.weight_map.find(name);
      if (place == index.weight_map.end()) {
        return DataLoss(open->file->path(), ": has a tensor \"", name,
                        "\", which the index does not list");
      }
      if (place->second != file) {
        return DataLoss(open->file->path(), ": has a tensor \"", name,
                        "\", which the index says is in \"", place->second, "\"");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LoadReport> LoadModelWeights(const CheckpointTarget& source,
                                            const std::vector<TensorPart>& targets,
                                            const LoadWeightsOptions& options,
                                            const comm::GroupPtr& group) {
  CheckParts("load weights", targets);
  const ContextPtr context = CpuContext({.num_threads = 1});
  const absl::StatusOr<HfWeights> weights = HfWeights::Open(source.files, source.path);
  absl::StatusOr<Fit> fit = weights.ok() ? Compare(*weights, targets, source.path)
                                         : absl::StatusOr<Fit>(weights.status());
  const absl::Status status = fit.ok() ? CheckFit(*fit, source.path, options.strict) : fit.status();
  APOGEE_RETURN_IF_ERROR(AgreeOnStatus(status, group, context));
  APOGEE_RETURN_IF_ERROR(AgreeOnStatus(ReadAll(*weights, fit->names, targets), group, context));
  return std::move(fit->report);
}

absl::StatusOr<HfWeights> HfWeights::Open(const std::shared_ptr<FileSystem>& files,
                                          const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files->List(path));
  const bool single = std::ranges::binary_search(names, std::string(kHfSingleName));
  const bool indexed = std::ranges::binary_search(names, std::string(kHfIndexName));
  if (single && indexed) {
    return InvalidArgument(path, ": has both ", kHfSingleName, " and ", kHfIndexName,
                           "; remove the one that is out of date");
  }
  if (!single && !indexed) {
    return NotFound(path, ": has neither ", kHfSingleName, " nor ", kHfIndexName);
  }
  HfWeights weights;
  HfIndex index;
  if (indexed) {
    const std::string name = JoinPath(path, kHfIndexName);
    APOGEE_ASSIGN_OR_RETURN(const std::string json, ReadTextFile(*files, name, kMaxHeaderBytes));
    APOGEE_ASSIGN_OR_RETURN(index, ParseHfIndex(json, name));
  }
  std::set<std::string> file_names;
  if (single) file_names.insert(kHfSingleName);
  for (const auto& [name, file] : index.weight_map) file_names.insert(file);
  for (const std::string& file : file_names) {
    APOGEE_ASSIGN_OR_RETURN(OpenTensorFile open,
                            OpenTensorFile::Open(*files, JoinPath(path, file)));
    weights.files_[file] = std::make_shared<OpenTensorFile>(std::move(open));
  }
  if (indexed) APOGEE_RETURN_IF_ERROR(CheckIndex(index, weights.files_));
  for (const auto& [file, open] : weights.files_) {
    for (const auto& [name, entry] : open->header.entries) {
      weights.tensors_[name] = {open.get(), &entry};
    }
  }
  return weights;
}

absl::Status HfWeights::Read(const std::string& name, const comm::Layout& layout,
                             const Tensor& to) const {
  const auto& [file, entry] = tensors_.at(name);
  const DType dtype = *TensorDType(entry->dtype);
  const int64_t size = DTypeSize(dtype), numel = layout.logical_shape().numel();
  const int64_t window = std::min(kWindowBytes / size, std::max<int64_t>(numel, 1));
  const Tensor buffer = Tensor::Empty({window}, dtype, CpuContext({.num_threads = 1}));
  const Tensor flat = to.Detach().View({to.numel()});
  int64_t begin = 0, end = 0;  // of the elements in the buffer
  int64_t done = 0;
  for (const comm::Segment& segment : layout.segments()) {
    const int64_t segment_end = segment.begin + segment.length;
    for (int64_t at = segment.begin; at < segment_end;) {
      if (at < begin || at >= end) {
        begin = at;
        end = std::min(at + window, numel);
        APOGEE_RETURN_IF_ERROR(file->file->Read(
            file->data_start + entry->begin + begin * size,
            {static_cast<std::byte*>(buffer.raw()), static_cast<size_t>((end - begin) * size)}));
      }
      const int64_t count = std::min(end, segment_end) - at;
      flat.Slice(0, done, count).CopyFrom(buffer.Slice(0, at - begin, count));
      at += count;
      done += count;
    }
  }
  return absl::OkStatus();
}

}  // namespace apogee::checkpoint
