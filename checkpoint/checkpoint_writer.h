// SPDX-License-Identifier: Apache-2.0

// Saves what ranks hold between them as one folder that either is there, whole, or is not.
//
//   std::vector<TensorPart> parts = {{"model/w", view.value(), view.layout()}, ...};
//   absl::Status status = SaveCheckpoint({.files = RealFileSystem(), .path = "run/step-100"},
//                                        {.attributes = {{"step", "100"}}, .parts = parts}, group);
//
// Every rank of the group calls, with its own parts; a part that several ranks hold is written by
// one of them, shared out evenly. Protocol: a temporary folder beside the final one; every rank
// writes and syncs one safetensors file; all agree that all succeeded; rank 0 writes and syncs the
// manifest, syncs the folder, renames it, and syncs the folder above. On an error every rank
// returns the same one, which names the rank, and the temporary is removed. Nothing is ever
// overwritten: AlreadyExists; nothing is written where the disk has not the room:
// ResourceExhausted. When it returns ok the checkpoint survives a power cut.
//
// The tensors must not change while it runs; PlanCheckpoint is the same in two halves, to write
// while training goes on.
#ifndef APOGEE_CHECKPOINT_CHECKPOINT_WRITER_H_
#define APOGEE_CHECKPOINT_CHECKPOINT_WRITER_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apogee/checkpoint/planned_save.h"

namespace apogee::checkpoint {

struct CheckpointContents {
  std::map<std::string, std::string> attributes;  // UTF-8 texts; rank 0's count
  std::vector<TensorPart> parts;
};

// Collective; null: one rank. InvalidArgument, on every rank, as of MakeSavePlan and for attributes
// that are not UTF-8.
absl::StatusOr<std::unique_ptr<PlannedSave>> PlanCheckpoint(CheckpointContents contents,
                                                            const comm::GroupPtr& group);

// Collective; null: one rank.
absl::Status SaveCheckpoint(const CheckpointTarget& target, CheckpointContents contents,
                            const comm::GroupPtr& group);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_CHECKPOINT_WRITER_H_
