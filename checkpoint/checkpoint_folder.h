// SPDX-License-Identifier: Apache-2.0

// A folder of checkpoints named "step-N": finds the valid ones and removes old ones.
//
//   APOGEE_ASSIGN_OR_RETURN(FoundCheckpoints found, FindCheckpoints(RealFileSystem(), "run"));
//   if (!found.valid.empty()) ... JoinPath("run", found.valid.back().name) ...
//   KeepNewest(*RealFileSystem(), "run", found, 3);
//
// A checkpoint is valid if the manifest parses, every listed file exists with its size, and the
// attribute "step", if there is one, is the step in the name. Only KeepNewest removes anything. It
// renames first, so a half-removed checkpoint is never mistaken for a valid one. Nothing outside
// the folder is touched: if an entry of the folder is a link, only the link is renamed or removed.
#ifndef APOGEE_CHECKPOINT_CHECKPOINT_FOLDER_H_
#define APOGEE_CHECKPOINT_CHECKPOINT_FOLDER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/checkpoint/files/file_system.h"

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
  std::vector<RejectedCheckpoint> rejected;  // named like a checkpoint, but not valid
};

// "step-00000100".
std::string CheckpointName(int64_t step);

// Whether this error means that a checkpoint is damaged: its bytes are wrong or missing, or
// something that is not a file has the name of one. Not damaged: a checkpoint that cannot be opened
// for now, has a newer format, or is whole but of another model. resume skips damaged checkpoints,
// and a save of the same step renames them.
bool IsDamage(const absl::Status& why);

// Makes the folder, so that it survives a power cut. Ok if it, or a link to a folder, exists. Its
// parent must exist. AlreadyExists for anything else of that name.
absl::Status MakeFolder(FileSystem& files, const std::string& folder);

// NotFound if the folder is missing.
absl::StatusOr<FoundCheckpoints> FindCheckpoints(const std::shared_ptr<FileSystem>& files,
                                                 const std::string& folder);

// Removes all valid checkpoints but the newest `keep` (at least 2), and the leftovers of earlier
// saves and removals: everything with a name that begins with ".tmp-" or ".trash-". Continues after
// a failed removal and returns the error of each. Only one process may call, while no save is
// running.
std::vector<absl::Status> KeepNewest(FileSystem& files, const std::string& folder,
                                     const FoundCheckpoints& found, int64_t keep);

struct SetAside {
  std::string name;  // the new name
  std::string why;
};

// Makes room for a new save of the step. If `name` exists and is not a whole checkpoint of its
// step, renames it "damaged-<name>", with a number appended if that is taken, and returns the new
// name and the reason; else returns nothing. `passed_over`: the reason why resume skipped the
// checkpoint, which is accepted without a check; "" if resume did not skip it.
absl::StatusOr<std::optional<SetAside>> SetAsideIfDamaged(const std::shared_ptr<FileSystem>& files,
                                                          const std::string& folder,
                                                          const std::string& name,
                                                          const std::string& passed_over = "");

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_CHECKPOINT_FOLDER_H_
