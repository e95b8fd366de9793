// A folder of checkpoints, "step-N" each: which are valid, and which to keep.
//
//   APOGEE_ASSIGN_OR_RETURN(FoundCheckpoints found, FindCheckpoints(RealFileSystem(), "run"));
//   if (!found.valid.empty()) ... JoinPath("run", found.valid.back().name) ...
//   KeepNewest(*RealFileSystem(), "run", found, 3);
//
// Valid: the manifest parses and every file it lists is there with its size. Nothing is ever
// removed but by KeepNewest, which first renames, so that a half-removed checkpoint is never
// mistaken for one.
#ifndef APOGEE_CHECKPOINT_CHECKPOINT_FOLDER_H_
#define APOGEE_CHECKPOINT_CHECKPOINT_FOLDER_H_

#include <cstdint>
#include <memory>
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

// Makes the folder, so that it survives a power cut, unless it is there. The one above must exist.
absl::Status MakeFolder(FileSystem& files, const std::string& folder);

// NotFound when the folder is missing.
absl::StatusOr<FoundCheckpoints> FindCheckpoints(const std::shared_ptr<FileSystem>& files,
                                                 const std::string& folder);

// Removes all but the newest `keep` (at least 2) valid ones, and what earlier saves and removals
// left unfinished. One process, while no save is running.
absl::Status KeepNewest(FileSystem& files, const std::string& folder, const FoundCheckpoints& found,
                        int64_t keep);

// Where checkpoint `name` is damaged (a digest differs, a file or the manifest is missing), renames
// it "damaged-<name>", in place of an earlier one of that name, and returns what was wrong with it;
// else "". For the step to be saved again.
absl::StatusOr<std::string> SetAsideIfDamaged(const std::shared_ptr<FileSystem>& files,
                                              const std::string& folder, const std::string& name);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_CHECKPOINT_FOLDER_H_
