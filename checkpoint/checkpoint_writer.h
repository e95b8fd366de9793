// SPDX-License-Identifier: Apache-2.0

// Saves the tensors that ranks hold together as one folder. The folder either exists, whole, or not
// at all.
//
//   std::vector<TensorPart> parts = {{"model/w", view.value(), view.layout()}, ...};
//   absl::Status status = SaveCheckpoint({.files = RealFileSystem(), .path = "run/step-100"},
//                                        {.attributes = {{"step", "100"}}, .parts = parts}, group);
//
// Every rank of the group calls, with its own parts. If several ranks hold a part, one of them
// writes it; these parts are shared out evenly. The steps:
//
//   1. A temporary folder is made beside the final one.
//   2. Every rank writes and syncs one safetensors file.
//   3. All ranks agree that all succeeded.
//   4. Rank 0 writes and syncs the manifest, syncs the folder, renames it, and syncs its parent.
//
// On an error the temporary folder is removed, and every rank returns the same error, which names
// the rank. Nothing is ever overwritten: AlreadyExists. If the disk has too little room, nothing is
// written: ResourceExhausted. Once it returns ok the checkpoint survives a power cut.
//
// The tensors must not change during the call. PlanCheckpoint does the same in two halves, to write
// while training continues.
#ifndef APOGEE_CHECKPOINT_CHECKPOINT_WRITER_H_
#define APOGEE_CHECKPOINT_CHECKPOINT_WRITER_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apogee/checkpoint/planned_save.h"

namespace apogee::checkpoint {

struct CheckpointContents {
  std::map<std::string, std::string> attributes;  // UTF-8 texts; rank 0's are written
  std::vector<TensorPart> parts;
};

// Collective; null: one rank. InvalidArgument, on every rank, in the cases of MakeSavePlan and for
// attributes that are not UTF-8.
absl::StatusOr<std::unique_ptr<PlannedSave>> PlanCheckpoint(CheckpointContents contents,
                                                            const comm::GroupPtr& group);

// Collective; null: one rank.
absl::Status SaveCheckpoint(const CheckpointTarget& target, CheckpointContents contents,
                            const comm::GroupPtr& group);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_CHECKPOINT_WRITER_H_
