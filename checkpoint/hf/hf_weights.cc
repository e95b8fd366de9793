// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/hf/hf_weights.h"

#include <algorithm>
#include <set>

#include "apogee/checkpoint/agreement.h"
#include "apogee/checkpoint/format/tensor_file.h"
#include "apogee/checkpoint/hf/hf_download.h"
#include "apogee/checkpoint/hf/hf_experts.h"
#include "apogee/checkpoint/hf/hf_fit.h"
#include "apogee/checkpoint/hf/hf_index.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee::checkpoint {
namespace {

// Bytes of a tensor read at once, and so the memory that conversion takes.
constexpr int64_t kWindowBytes = int64_t{1} << 20;

absl::Status ReadAll(const HfWeights& weights, const HfNames& names,
                     const std::vector<TensorPart>& targets) {
  for (const TensorPart& target : targets) {
    const std::string name = names.InFiles(target.name);
    if (!weights.tensors().contains(name)) continue;
    APOGEE_RETURN_IF_ERROR(weights.Read(name, target.layout, target.value));
  }
  return absl::OkStatus();
}

// Checks both ways: each tensor is in the file that the index says, and each file holds no others.
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
  std::vector<HfTarget> wanted;
  for (const TensorPart& target : targets) {
    wanted.push_back(
        {target.name, target.layout.logical_shape(), target.value.dtype(), target.value.raw()});
  }
  const absl::StatusOr<HfWeights> weights =
      HfWeights::Open(source.files, source.path, options.single_name);
  absl::StatusOr<HfFit> fit = weights.ok() ? CompareNames(*weights, wanted, options, source.path)
                                           : absl::StatusOr<HfFit>(weights.status());
  APOGEE_RETURN_IF_ERROR(AgreeOnStatus(fit.status(), group));
  // Only one rank reads the two whole tensors.
  const bool leads = group == nullptr || group->rank() == 0;
  for (const HfTie& tie : fit->names.ties) {
    absl::StatusOr<std::string> difference = std::string();
    if (leads) difference = CompareTied(*weights, tie);
    APOGEE_RETURN_IF_ERROR(AgreeOnStatus(difference.status(), group));
    NoteTied(tie, GatherTexts(*difference, group)[0], *fit);
  }
  APOGEE_RETURN_IF_ERROR(AgreeOnStatus(CheckFit(*fit, source.path, options.strict), group));
  APOGEE_RETURN_IF_ERROR(AgreeOnStatus(ReadAll(*weights, fit->names, targets), group));
  return std::move(fit->report);
}

absl::StatusOr<HfWeights> HfWeights::Open(const std::shared_ptr<FileSystem>& files,
                                          const std::string& path, const std::string& single_name) {
  APOGEE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files->List(path));
  const bool single = std::ranges::binary_search(names, single_name);
  const bool indexed =
      single_name == kHfSingleName && std::ranges::binary_search(names, std::string(kHfIndexName));
  if (!single && single_name != kHfSingleName) {
    return NotFound(path, ": has no ", single_name);
  }
  if (single && indexed) {
    return InvalidArgument(path, ": has both ", kHfSingleName, " and ", kHfIndexName,
                           "; remove the one that is out of date");
  }
  if (!single && !indexed) return NoHfWeights(path, names);
  HfWeights weights;
  HfIndex index;
  std::set<std::string> file_names;
  if (single) file_names.insert(single_name);
  if (indexed) {
    const std::string name = JoinPath(path, kHfIndexName);
    APOGEE_ASSIGN_OR_RETURN(const std::string json, ReadTextFile(*files, name, kMaxHeaderBytes));
    APOGEE_ASSIGN_OR_RETURN(index, ParseHfIndex(json, name));
    for (const auto& [tensor, file] : index.weight_map) file_names.insert(file);
    APOGEE_RETURN_IF_ERROR(CheckAllThere(path, file_names, names));
  }
  for (const std::string& file : file_names) {
    APOGEE_ASSIGN_OR_RETURN(OpenTensorFile open, OpenHfFile(*files, JoinPath(path, file)));
    weights.files_[file] = std::make_shared<OpenTensorFile>(std::move(open));
  }
  if (indexed) APOGEE_RETURN_IF_ERROR(CheckIndex(index, weights.files_));
  std::map<std::string, Place> split;
  for (const auto& [file, open] : weights.files_) {
    for (const auto& [name, entry] : open->header.entries) {
      auto parts = SplitFusedExperts(name, entry);
      if (parts.empty()) weights.tensors_[name] = {open.get(), &entry};
      for (auto& [part, place] : parts) {
        weights.parts_.push_back(std::make_shared<const SafetensorsEntry>(std::move(place)));
        split[part] = {open.get(), weights.parts_.back().get()};
      }
    }
  }
  for (const auto& [name, place] : split) {
    if (weights.tensors_.insert({name, place}).second) continue;
    return InvalidArgument(path, ": has the expert tensor \"", name,
                           "\" and a fused tensor with the same expert");
  }
  return weights;
}

absl::Status HfWeights::Read(const std::string& name, const Layout& layout,
                             const Tensor& to) const {
  const auto& [file, entry] = tensors_.at(name);
  const DType dtype = *TensorDType(entry->dtype);
  const int64_t size = DTypeSize(dtype), numel = layout.logical_shape().numel();
  const int64_t window = std::min(kWindowBytes / size, std::max<int64_t>(numel, 1));
  const Tensor buffer = Tensor::Empty({window}, dtype, CpuContext({.num_threads = 1}));
  const Tensor flat = to.Detach().View({to.numel()});
  int64_t begin = 0, end = 0;  // the elements in the buffer
  int64_t done = 0;
  for (const Segment& segment : layout.segments()) {
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
