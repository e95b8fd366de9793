// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "apogee/checkpoint/agreement.h"
#include "apogee/checkpoint/files/new_folder.h"
#include "apogee/checkpoint/format/tensor_file.h"
#include "apogee/checkpoint/hf/hf_config_dtype.h"
#include "apogee/checkpoint/hf/hf_shards.h"
#include "apogee/checkpoint/hf/hf_weights.h"
#include "apogee/checkpoint/save_plan.h"
#include "apogee/tensor/cpu/cpu_context.h"

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

// One rank's part in writing all files.
class WeightsWriter {
 public:
  WeightsWriter(FileSystem& files, const std::vector<TensorPart>& parts, const SavePlan& plan,
                comm::GroupPtr group)
      : files_(files), plan_(plan), group_(std::move(group)) {
    for (const TensorPart& part : parts) parts_[part.name] = &part;
    for (size_t rank = 0; rank < plan.written_by.size(); ++rank) {
      for (const auto& written : plan.written_by[rank]) holder_[written] = static_cast<int>(rank);
    }
  }

  // Collective.
  absl::Status WriteFile(const std::string& path, const std::vector<std::string>& names) {
    std::vector<FileEntry> entries;
    for (const std::string& name : names) {
      const LogicalTensor& tensor = plan_.tensors.at(name);
      entries.push_back({.name = name, .dtype = tensor.dtype, .shape = tensor.shape, .data = {}});
    }
    std::optional<TensorFileWriter> writer;
    absl::Status status;
    std::string order;  // rank 0's order of entries
    if (IsWriter()) {
      // The library Transformers refuses files that do not name a framework.
      auto made = TensorFileWriter::Create(files_, path, entries, {{"format", "pt"}});
      status = made.status();
      if (made.ok()) writer = *std::move(made);
    }
    APOGEE_RETURN_IF_ERROR(AgreeOnStatus(status, group_));
    if (writer) {
      const std::vector<size_t>& indices = writer->order();
      order.assign(reinterpret_cast<const char*>(indices.data()), indices.size() * sizeof(size_t));
    }
    order = GatherTexts(order, group_)[0];
    std::vector<size_t> indices(names.size());
    std::memcpy(indices.data(), order.data(), order.size());
    for (const size_t index : indices) {
      const Tensor whole = Gather(names[index]);
      if (writer) {
        status = writer->Append(
            {static_cast<const std::byte*>(whole.raw()), static_cast<size_t>(whole.bytes())});
      }
      APOGEE_RETURN_IF_ERROR(AgreeOnStatus(status, group_));
    }
    if (writer) status = writer->Finish().status();
    return AgreeOnStatus(status, group_);
  }

  bool IsWriter() const { return group_ == nullptr || group_->rank() == 0; }

 private:
  // The whole tensor, on rank 0.
  Tensor Gather(const std::string& name) const {
    const LogicalTensor& tensor = plan_.tensors.at(name);
    const DType dtype = *TensorDType(tensor.dtype);
    Tensor whole;
    if (IsWriter()) {
      whole =
          Tensor::Empty({NumelOf(tensor.shape)}, dtype, context_, MemoryCategory::kCommunication);
    }
    const int me = group_ == nullptr ? 0 : group_->rank();
    for (size_t i = 0; i < tensor.slices.size(); ++i) {
      const Slice& slice = tensor.slices[i];
      const int holder = holder_.at({name, i});
      if (!IsWriter() && holder != me) continue;
      const int64_t numel = slice.numel();
      Tensor part;
      if (holder == me) {
        const Tensor& value = parts_.at(name)->value;
        part = value.Detach().View({value.numel()}).Slice(0, 0, numel).ToHost();
      } else {
        part = Tensor::Empty({numel}, dtype, context_, MemoryCategory::kCommunication);
        group_->Recv(part, holder);
      }
      if (!IsWriter()) {
        group_->Send(part, 0);
        continue;
      }
      const int64_t size = DTypeSize(dtype);
      const auto* from = static_cast<const std::byte*>(part.raw());
      for (const Segment& segment : SegmentsOf(slice.runs)) {
        std::memcpy(static_cast<std::byte*>(whole.raw()) + segment.begin * size, from,
                    static_cast<size_t>(segment.length * size));
        from += segment.length * size;
      }
    }
    return whole;
  }

  FileSystem& files_;
  const SavePlan& plan_;
  comm::GroupPtr group_;
  const ContextPtr context_ = CpuContext({.num_threads = 1});
  std::map<std::string, const TensorPart*> parts_;
  std::map<std::pair<std::string, size_t>, int> holder_;  // by a tensor's name and slice
};

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
  return folder.Publish();
}

class PlannedWeights : public PlannedSave {
 public:
  PlannedWeights(std::vector<TensorPart> parts, SavePlan plan, HfShards shards,
                 SaveWeightsOptions options)
      : parts_(std::move(parts)),
        plan_(std::move(plan)),
        shards_(std::move(shards)),
        options_(std::move(options)) {
    for (const auto& [name, tensor] : plan_.tensors) total_bytes_ += tensor.bytes();
  }

  int64_t total_bytes() const override { return total_bytes_; }
  void Snapshot() override { CopyParts(parts_, plan_.mine); }
  absl::Status Write(const CheckpointTarget& target, const comm::GroupPtr& group) override {
    APOGEE_ASSIGN_OR_RETURN(NewFolder folder,
                            NewFolder::Make(*target.files, target.path, total_bytes_, group));
    WeightsWriter writer(*target.files, parts_, plan_, group);
    absl::Status status;
    for (size_t i = 0; i < shards_.size() && status.ok(); ++i) {
      status =
          writer.WriteFile(JoinPath(folder.temporary(), HfFileName(i, shards_.size())), shards_[i]);
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
  const std::string leader = GatherTexts(std::to_string(ShardBytes(options)), group)[0];
  std::map<std::string, int64_t> bytes_by_name;
  for (const auto& [name, tensor] : plan.tensors) bytes_by_name[name] = tensor.bytes();
  HfShards shards = SpreadOverFiles(bytes_by_name, std::stoll(leader));
  return std::make_unique<PlannedWeights>(std::move(unique), std::move(plan), std::move(shards),
                                          options);
}

absl::Status SaveModelWeights(const CheckpointTarget& target, const std::vector<TensorPart>& parts,
                              const SaveWeightsOptions& options, const comm::GroupPtr& group) {
  APOGEE_ASSIGN_OR_RETURN(const std::unique_ptr<PlannedSave> save,
                          PlanModelWeights(parts, options, group));
  return save->Write(target, group);
}

}  // namespace apogee::checkpoint
