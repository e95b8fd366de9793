// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <set>

#include "apogee/checkpoint/agreement.h"
#include "apogee/checkpoint/files/new_folder.h"
#include "apogee/checkpoint/hf/hf_config_dtype.h"
#include "apogee/checkpoint/hf/hf_shards.h"
#include "apogee/checkpoint/hf/hf_weights.h"
#include "apogee/checkpoint/hf/hf_weights_writer.h"
#include "apogee/checkpoint/save_plan.h"

namespace apogee::checkpoint {
namespace {

int64_t NumelOf(const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return numel;
}

// The parts in the order of their names, with each piece of memory once.
std::vector<TensorPart> WithoutAliases(std::vector<TensorPart> parts) {
  std::ranges::stable_sort(parts, {}, &TensorPart::name);
  std::set<const void*> seen;
  std::erase_if(parts, [&](const TensorPart& part) {
    return part.value.numel() > 0 && !seen.insert(part.value.raw()).second;
  });
  return parts;
}

absl::Status CheckPlan(const SavePlan& plan, const SaveWeightsOptions& options) {
  if (!options.use_safetensors) {
    return InvalidArgument(
        "save weights: use_safetensors = false would need pickles, which run code when they are "
        "read; leave it true");
  }
  APOGEE_RETURN_IF_ERROR(CheckShardSize(options.size_per_shard_mb));
  if (plan.tensors.empty()) return InvalidArgument("save weights: there are no tensors");
  for (const auto& [name, tensor] : plan.tensors) {
    std::vector<Segment> all;
    for (const Slice& slice : tensor.slices) {
      for (const Segment& segment : SegmentsOf(slice.runs)) all.push_back(segment);
    }
    std::ranges::sort(all, {}, &Segment::begin);
    int64_t next = 0;
    for (const Segment& segment : all) {
      if (segment.begin != next) break;
      next += segment.length;
    }
    const int64_t numel = NumelOf(tensor.shape);
    if (next != numel) {
      return InvalidArgument("save weights: element ", next, " of tensor \"", name, "\" of ", numel,
                             " is held by no rank, or by two that hold different parts");
    }
  }
  return absl::OkStatus();
}

// Called by rank 0 when all tensors are written.
absl::Status Publish(FileSystem& files, NewFolder& folder, const SavePlan& plan,
                     const HfShards& shards, const SaveWeightsOptions& options) {
  if (shards.size() > 1) {
    int64_t total_size = 0;
    for (const auto& [name, tensor] : plan.tensors) total_size += tensor.bytes();
    APOGEE_RETURN_IF_ERROR(WriteTextFile(files, JoinPath(folder.temporary(), kHfIndexName),
                                         FormatHfIndexOf(shards, total_size)));
  }
  if (!options.config_json.empty()) {
    std::set<std::string> dtypes;
    for (const auto& [name, tensor] : plan.tensors) dtypes.insert(tensor.dtype);
    APOGEE_RETURN_IF_ERROR(WriteTextFile(files, JoinPath(folder.temporary(), "config.json"),
                                         WithDType(options.config_json, dtypes)));
  }
  for (const auto& [name, text] : options.texts) {
    APOGEE_RETURN_IF_ERROR(WriteTextFile(files, JoinPath(folder.temporary(), name), text));
  }
  return folder.Publish();
}

class PlannedWeights : public PlannedSave {
 public:
  PlannedWeights(std::vector<TensorPart> parts, SavePlan plan, WeightsWriter::Fused fused,
                 HfShards shards, SaveWeightsOptions options)
      : parts_(std::move(parts)),
        plan_(std::move(plan)),
        fused_(std::move(fused)),
        shards_(std::move(shards)),
        options_(std::move(options)) {
    for (const auto& [name, tensor] : plan_.tensors) total_bytes_ += tensor.bytes();
  }

  int64_t total_bytes() const override { return total_bytes_; }
  void Snapshot() override { CopyParts(parts_, plan_.mine); }
  absl::Status Write(const CheckpointTarget& target, const comm::GroupPtr& group) override {
    APOGEE_ASSIGN_OR_RETURN(NewFolder folder,
                            NewFolder::Make(*target.files, target.path, total_bytes_, group));
    WeightsWriter writer(*target.files, parts_, plan_, fused_, group);
    absl::Status status;
    for (size_t i = 0; i < shards_.size() && status.ok(); ++i) {
      const std::string name =
          shards_.size() == 1 ? options_.single_name : HfFileName(i, shards_.size());
      status = writer.WriteFile(JoinPath(folder.temporary(), name), shards_[i]);
    }
    if (status.ok()) {
      absl::Status published;
      if (writer.IsWriter()) published = Publish(*target.files, folder, plan_, shards_, options_);
      status = AgreeOnStatus(published, group);
    }
    if (!status.ok() && writer.IsWriter()) folder.Discard();
    return WithSpace(status, target, total_bytes_);
  }

 private:
  std::vector<TensorPart> parts_;
  SavePlan plan_;
  WeightsWriter::Fused fused_;
  HfShards shards_;
  SaveWeightsOptions options_;
  int64_t total_bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PlannedSave>> PlanModelWeights(std::vector<TensorPart> parts,
                                                              const SaveWeightsOptions& options,
                                                              const comm::GroupPtr& group) {
  CheckParts("save weights", parts);
  std::vector<TensorPart> unique = WithoutAliases(std::move(parts));
  APOGEE_ASSIGN_OR_RETURN(SavePlan plan, MakeSavePlan(unique, group));
  APOGEE_RETURN_IF_ERROR(AgreeOnStatus(CheckPlan(plan, options), group));
  const std::string mine =
      internal::Concat(ShardBytes(options), options.fuse_experts ? " fused" : "");
  const std::string leader = GatherTexts(mine, group)[0];
  std::map<std::string, int64_t> bytes_by_name;
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& [name, tensor] : plan.tensors) {
    bytes_by_name[name] = tensor.bytes();
    shapes[name] = tensor.shape;
  }
  WeightsWriter::Fused fused;
  if (leader.ends_with("fused")) fused = FuseExperts(shapes);
  // Experts of several dtypes stay as they are.
  std::erase_if(fused, [&](const auto& entry) {
    const std::vector<std::string>& parts = entry.second.parts;
    return std::ranges::any_of(parts, [&](const std::string& part) {
      return plan.tensors.at(part).dtype != plan.tensors.at(parts[0]).dtype;
    });
  });
  for (const auto& [name, experts] : fused) {
    int64_t bytes = 0;
    for (const std::string& part : experts.parts) {
      bytes += plan.tensors.at(part).bytes();
      bytes_by_name.erase(part);
    }
    bytes_by_name[name] = bytes;
  }
  HfShards shards = SpreadOverFiles(bytes_by_name, std::stoll(leader));
  return std::make_unique<PlannedWeights>(std::move(unique), std::move(plan), std::move(fused),
                                          std::move(shards), options);
}

absl::Status SaveModelWeights(const CheckpointTarget& target, const std::vector<TensorPart>& parts,
                              const SaveWeightsOptions& options, const comm::GroupPtr& group) {
  APOGEE_ASSIGN_OR_RETURN(const std::unique_ptr<PlannedSave> save,
                          PlanModelWeights(parts, options, group));
  return save->Write(target, group);
}

}  // namespace apogee::checkpoint
