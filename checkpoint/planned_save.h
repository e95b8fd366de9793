// SPDX-License-Identifier: Apache-2.0

// PlannedSave: a save in two halves. Only the first needs the tensors as they are now.
//
//   APOGEE_ASSIGN_OR_RETURN(auto save, PlanCheckpoint(std::move(contents), group));
//   save->Snapshot();                                  // training may continue from here
//   std::thread([&] { status = save->Write({files, "run/step-100"}, duplicate_group); });
//
// Without Snapshot the tensors must not change until Write has returned.
#ifndef APOGEE_CHECKPOINT_PLANNED_SAVE_H_
#define APOGEE_CHECKPOINT_PLANNED_SAVE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apogee/checkpoint/files/file_system.h"
#include "apogee/comm/group.h"
#include "apogee/layout/layout.h"

namespace apogee::checkpoint {

// This rank's part of a logical tensor: the first layout.local_numel() elements of `value`, in host
// memory. All ranks that name a tensor agree on its shape and dtype. Two ranks' segments are equal
// or disjoint.
struct TensorPart {
  std::string name;
  Tensor value;
  Layout layout;
};

// Throws Error unless every value is contiguous and large enough. The message begins with `what`.
void CheckParts(const char* what, const std::vector<TensorPart>& parts);

struct CheckpointTarget {
  std::shared_ptr<FileSystem> files;
  std::string path;  // the folder to make; its parent must exist
};

class PlannedSave {
 public:
  virtual ~PlannedSave() = default;
  // Bytes of all ranks' tensors together, as they are written.
  virtual int64_t total_bytes() const = 0;
  // Copies the data that this rank will write, and releases everything else. Not collective.
  virtual void Snapshot() = 0;
  // Collective over the group that planned the save, or a duplicate of it. Call it once.
  virtual absl::Status Write(const CheckpointTarget& target, const comm::GroupPtr& group) = 0;
};

// Replaces the parts at `mine` by copies, and drops the values of the others.
void CopyParts(std::vector<TensorPart>& parts, const std::vector<size_t>& mine);

// Returns `status`. If the disk is full, adds how much there was to write and how much is free.
absl::Status WithSpace(const absl::Status& status, const CheckpointTarget& target,
                       int64_t total_bytes);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_PLANNED_SAVE_H_
