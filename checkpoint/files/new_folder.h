// SPDX-License-Identifier: Apache-2.0

// NewFolder: a folder that several ranks fill. It either exists, whole, or not at all.
//
//   APOGEE_ASSIGN_OR_RETURN(
//       NewFolder folder, NewFolder::Make(files, "run/step-100", bytes, group));
//   ... ranks write and sync files in folder.temporary(), and agree that all succeeded ...
//   if (rank == 0) status = folder.Publish();      // syncs and renames; on an error: Discard()
//
// Nothing is ever overwritten: AlreadyExists.
#ifndef APOGEE_CHECKPOINT_FILES_NEW_FOLDER_H_
#define APOGEE_CHECKPOINT_FILES_NEW_FOLDER_H_

#include <string>

#include "apogee/checkpoint/files/file_system.h"
#include "apogee/comm/group.h"

namespace apogee::checkpoint {

// A name with one of these prefixes is temporary or being removed, and never valid.
inline constexpr const char* kTemporaryPrefix = ".tmp-";
inline constexpr const char* kTrashPrefix = ".trash-";

class NewFolder {
 public:
  // Collective (null: one rank); every rank gets the same status and temporary folder. The parent
  // of `path` must exist. ResourceExhausted if less than `bytes` are free there. `files` must
  // outlive it.
  static absl::StatusOr<NewFolder> Make(FileSystem& files, const std::string& path, int64_t bytes,
                                        const comm::GroupPtr& group);

  const std::string& temporary() const { return temporary_; }
  // One rank calls one of them, when all have stopped writing. If something cannot be removed, its
  // name still shows that it is temporary.
  absl::Status Publish();
  void Discard();

 private:
  NewFolder(FileSystem& files, std::string path, std::string temporary)
      : files_(&files), path_(std::move(path)), temporary_(std::move(temporary)) {}

  FileSystem* files_;
  std::string path_, temporary_;
};

// Writes, syncs and closes the file.
absl::Status WriteTextFile(FileSystem& files, const std::string& path, const std::string& text);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_FILES_NEW_FOLDER_H_
