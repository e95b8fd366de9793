// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/checkpoint_writer.h"

#include <cstring>

#include "apogee/checkpoint/agreement.h"
#include "apogee/checkpoint/files/new_folder.h"
#include "apogee/checkpoint/format/tensor_file.h"
#include "apogee/checkpoint/save_plan.h"
#include "apogee/core/text/json_reader.h"
#include "apogee/core/text/utf8.h"

namespace apogee::checkpoint {
namespace {

struct RankResult {
  int64_t bytes = 0;
  std::vector<std::vector<uint64_t>> digests;
};

absl::StatusOr<RankResult> WriteOwnFile(FileSystem& files, const std::string& folder, int rank,
                                        const std::vector<TensorPart>& parts,
                                        const SavePlan& plan) {
  if (plan.mine.empty()) return RankResult{};
  std::vector<FileEntry> entries;
  std::vector<Tensor> values;  // data on a GPU is copied to the host
  for (const size_t index : plan.mine) {
    const TensorPart& part = parts[index];
    const int64_t numel = part.layout.local_numel();
    values.push_back(part.value.Detach().ToHost());
    entries.push_back({.name = part.name,
                       .dtype = SafetensorsDType(part.value.dtype()),
                       .shape = {numel},
                       .data = {static_cast<const std::byte*>(values.back().raw()),
                                static_cast<size_t>(numel * DTypeSize(part.value.dtype()))}});
  }
  APOGEE_ASSIGN_OR_RETURN(WrittenFile written,
                          WriteSafetensors(files, JoinPath(folder, RankFileName(rank)), entries));
  return RankResult{written.bytes, std::move(written.digests)};
}

// Describes a rank's file for rank 0: its bytes, then all digests, entry after entry.
std::string Pack(const RankResult& result) {
  std::string text(reinterpret_cast<const char*>(&result.bytes), sizeof(result.bytes));
  for (const auto& digests : result.digests) {
    text.append(reinterpret_cast<const char*>(digests.data()), digests.size() * sizeof(uint64_t));
  }
  return text;
}

void Unpack(const std::string& text, int rank, const SavePlan& plan, Manifest& manifest) {
  const auto& written = plan.written_by[static_cast<size_t>(rank)];
  if (written.empty()) return;
  const char* at = text.data();
  int64_t bytes = 0;
  std::memcpy(&bytes, at, sizeof(bytes));
  at += sizeof(bytes);
  manifest.files[RankFileName(rank)] = bytes;
  for (const auto& [name, index] : written) {
    LogicalTensor& tensor = manifest.tensors.at(name);
    Slice& slice = tensor.slices[index];
    const int64_t slice_bytes = slice.numel() * DTypeSize(*TensorDType(tensor.dtype));
    slice.digests.resize(
        static_cast<size_t>((slice_bytes + kDigestBlockBytes - 1) / kDigestBlockBytes));
    std::memcpy(slice.digests.data(), at, slice.digests.size() * sizeof(uint64_t));
    at += slice.digests.size() * sizeof(uint64_t);
  }
}

// Refuses attributes that the manifest cannot hold.
absl::Status CheckAttributes(const std::map<std::string, std::string>& attributes) {
  for (const auto& [name, value] : attributes) {
    if (IsUtf8(name) && IsUtf8(value)) continue;
    return InvalidArgument("save: attribute \"", Shortened(name),
                           "\" is not UTF-8; write other bytes as text, for example as digits");
  }
  return absl::OkStatus();
}

// Called by rank 0 when all files are written.
absl::Status Publish(FileSystem& files, NewFolder& folder, const Manifest& manifest) {
  const std::string json = FormatManifest(manifest);
  const std::string name = JoinPath(folder.temporary(), kManifestName);
  // This finds elements that no rank holds, before the folder gets its name.
  APOGEE_RETURN_IF_ERROR(ParseManifest(json, name).status());
  APOGEE_RETURN_IF_ERROR(WriteTextFile(files, name, json));
  return folder.Publish();
}

class PlannedCheckpoint : public PlannedSave {
 public:
  PlannedCheckpoint(CheckpointContents contents, SavePlan plan)
      : contents_(std::move(contents)), plan_(std::move(plan)) {
    for (const auto& [name, tensor] : plan_.tensors) total_bytes_ += tensor.bytes();
  }

  int64_t total_bytes() const override { return total_bytes_; }
  void Snapshot() override { CopyParts(contents_.parts, plan_.mine); }
  absl::Status Write(const CheckpointTarget& target, const comm::GroupPtr& group) override;

 private:
  CheckpointContents contents_;
  SavePlan plan_;
  int64_t total_bytes_ = 0;
};

absl::Status PlannedCheckpoint::Write(const CheckpointTarget& target, const comm::GroupPtr& group) {
  FileSystem& files = *target.files;
  const int rank = group == nullptr ? 0 : group->rank();
  APOGEE_ASSIGN_OR_RETURN(NewFolder folder,
                          NewFolder::Make(files, target.path, total_bytes_, group));
  absl::StatusOr<RankResult> own =
      WriteOwnFile(files, folder.temporary(), rank, contents_.parts, plan_);
  absl::Status status = AgreeOnStatus(WithSpace(own.status(), target, total_bytes_), group);
  if (status.ok()) {
    const std::vector<std::string> results = GatherTexts(Pack(*own), group);
    absl::Status published;
    if (rank == 0) {
      Manifest manifest{contents_.attributes, {}, std::move(plan_.tensors)};
      for (size_t r = 0; r < results.size(); ++r) {
        Unpack(results[r], static_cast<int>(r), plan_, manifest);
      }
      published = WithSpace(Publish(files, folder, manifest), target, total_bytes_);
    }
    status = AgreeOnStatus(published, group);
  }
  if (!status.ok() && rank == 0) folder.Discard();
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PlannedSave>> PlanCheckpoint(CheckpointContents contents,
                                                            const comm::GroupPtr& group) {
  CheckParts("save", contents.parts);
  const bool leads = group == nullptr || group->rank() == 0;
  APOGEE_RETURN_IF_ERROR(
      AgreeOnStatus(leads ? CheckAttributes(contents.attributes) : absl::OkStatus(), group));
  APOGEE_ASSIGN_OR_RETURN(SavePlan plan, MakeSavePlan(contents.parts, group));
  return std::make_unique<PlannedCheckpoint>(std::move(contents), std::move(plan));
}

absl::Status SaveCheckpoint(const CheckpointTarget& target, CheckpointContents contents,
                            const comm::GroupPtr& group) {
  APOGEE_ASSIGN_OR_RETURN(const std::unique_ptr<PlannedSave> save,
                          PlanCheckpoint(std::move(contents), group));
  return save->Write(target, group);
}

}  // namespace apogee::checkpoint
