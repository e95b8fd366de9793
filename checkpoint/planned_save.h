// SPDX-License-Identifier: Apache-2.0

// PlannedSave: a save in two halves: what needs the tensors as they are now, and what does not.
//
//   APOGEE_ASSIGN_OR_RETURN(auto save, PlanCheckpoint(std::move(contents), group));
//   save->Snapshot();                                  // training may go on from here
//   std::thread([&] { status = save->Write({files, "run/step-100"}, duplicate_group); });
//
// Without Snapshot the tensors must stay as they are until Write has returned.
#ifndef APOGEE_CHECKPOINT_PLANNED_SAVE_H_
#define APOGEE_CHECKPOINT_PLANNED_SAVE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apogee/checkpoint/file_system.h"
#include "apogee/comm/group.h"
#include "apogee/comm/layout.h"

namespace apogee::checkpoint {

// What this rank holds of a logical tensor: the first layout.local_numel() elements of `value`, in
// host memory. All ranks that name a tensor agree on its shape and dtype; two ranks' segments are
// the same or do not meet.
struct TensorPart {
  std::string name;
  Tensor value;
  comm::Layout layout;
};

// Throws Error, which begins with `what`, unless every value is contiguous and large enough.
void CheckParts(const char* what, const std::vector<TensorPart>& parts);

struct CheckpointTarget {
  std::shared_ptr<FileSystem> files;
  std::string path;  // the folder to make; the one above must exist
};

class PlannedSave {
 public:
  virtual ~PlannedSave() = default;
  // Of all ranks' tensors together, as they are written.
  virtual int64_t total_bytes() const = 0;
  // Copies what this rank will write, and lets go of everything else. Not collective.
  virtual void Snapshot() = 0;
  // Collective over the group that planned it, or a duplicate of that; once.
  virtual absl::Status Write(const CheckpointTarget& target, const comm::GroupPtr& group) = 0;
};

// Of the parts at `mine` a copy, of the others no value.
void CopyParts(std::vector<TensorPart>& parts, const std::vector<size_t>& mine);

// `status`, and where the disk is full, how much there was to write and how much is free.
absl::Status WithSpace(const absl::Status& status, const CheckpointTarget& target,
                       int64_t total_bytes);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_PLANNED_SAVE_H_
