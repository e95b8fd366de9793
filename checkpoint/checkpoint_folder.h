// SPDX-License-Identifier: Apache-2.0

// A folder of checkpoints, "step-N" each: which are valid, and which to keep.
//
//   APOGEE_ASSIGN_OR_RETURN(FoundCheckpoints found, FindCheckpoints(RealFileSystem(), "run"));
//   if (!found.valid.empty()) ... JoinPath("run", found.valid.back().name) ...
//   KeepNewest(*RealFileSystem(), "run", found, 3);
//
// Valid: the manifest parses, every file it lists is there with its size, and where the attributes
// name a step ("step") it is the one of the name. Nothing is ever removed but by KeepNewest, which
// first renames, so that a half-removed checkpoint is never mistaken for one; and nothing outside
// the folder is touched: of a link that lies in it, the link alone is renamed or removed.
#ifndef APOGEE_CHECKPOINT_CHECKPOINT_FOLDER_H_
#define APOGEE_CHECKPOINT_CHECKPOINT_FOLDER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/checkpoint/file_system.h"

namespace apogee::checkpoint {

struct FoundCheckpoint {
  int64_t step = 0;
  std::string name;  // in the folder
};

struct RejectedCheckpoint {
  int64_t step = 0;
  std::string name;
  absl::Status why;
};

struct FoundCheckpoints {
  std::vector<FoundCheckpoint> valid;        // oldest first
  std::vector<RejectedCheckpoint> rejected;  // named like one, but not valid
};

// "step-00000100".
std::string CheckpointName(int64_t step);

// Whether a checkpoint that gave this error is damaged: its bytes are wrong or missing, or
// something else is in the place of a file. Not damaged is one that cannot be opened for now, is of
// a newer format, or is whole but of another model. What resume passes over, and what a save of
// that step sets aside.
bool IsDamage(const absl::Status& why);

// Makes the folder, so that it survives a power cut, unless it is there, or a link to one. The one
// above must exist. AlreadyExists for anything else of that name.
absl::Status MakeFolder(FileSystem& files, const std::string& folder);

// NotFound when the folder is missing.
absl::StatusOr<FoundCheckpoints> FindCheckpoints(const std::shared_ptr<FileSystem>& files,
                                                 const std::string& folder);

// Removes all but the newest `keep` (at least 2) valid ones, and what earlier saves and removals
// left unfinished: all whose names begin with ".tmp-" or ".trash-". What cannot be removed stops
// nothing: the error of each is returned. One process, while no save is running.
std::vector<absl::Status> KeepNewest(FileSystem& files, const std::string& folder,
                                     const FoundCheckpoints& found, int64_t keep);

struct SetAside {
  std::string name;  // now
  std::string why;
};

// Where `name` is there and is no whole checkpoint of its step, renames it "damaged-<name>", or
// with a number behind where that is taken, and says why; else nothing. For the step to be saved
// again. `passed_over`: why a resume did not go on from it, which is then believed; "" where none
// did.
absl::StatusOr<std::optional<SetAside>> SetAsideIfDamaged(const std::shared_ptr<FileSystem>& files,
                                                          const std::string& folder,
                                                          const std::string& name,
                                                          const std::string& passed_over = "");

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_CHECKPOINT_FOLDER_H_
