// SPDX-License-Identifier: Apache-2.0

// Folder: an open folder. Its functions act on names in this very folder, even if its path now
// leads to another one. They act on the entry with a name, never on the target of a link.
//
//   APOGEE_ASSIGN_OR_RETURN(const std::unique_ptr<Folder> folder, files.OpenFolder("run"));
//   APOGEE_RETURN_IF_ERROR(folder->Rename("step-1", ".trash-step-1"));
//   APOGEE_RETURN_IF_ERROR(folder->Sync());
//   absl::Status removed = RemoveAll(*folder, ".trash-step-1");
//
// A name is one component of a path. Errors are those of file_system.h.
#ifndef APOGEE_CHECKPOINT_FILES_FOLDER_H_
#define APOGEE_CHECKPOINT_FILES_FOLDER_H_

#include <memory>
#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::checkpoint {

class Folder {
 public:
  virtual ~Folder() = default;
  // Sorted.
  virtual absl::StatusOr<std::vector<std::string>> List() = 0;
  // Opens a folder in this one. FailedPrecondition if it is not a folder, or is a link to one;
  // PermissionDenied if it is on another device or mounted there.
  virtual absl::StatusOr<std::unique_ptr<Folder>> OpenFolder(const std::string& name) = 0;
  // Atomic. `to` must not exist.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // Not a folder.
  virtual absl::Status RemoveFile(const std::string& name) = 0;
  // Must be empty.
  virtual absl::Status RemoveDir(const std::string& name) = 0;
  // Makes the names in it survive a power cut.
  virtual absl::Status Sync() = 0;
};

// Removes a file, a link, or a folder with everything in it. Of a link only the link is removed;
// mounted folders stay. Continues after a failed removal and returns the first error. A missing
// name is ok.
absl::Status RemoveAll(Folder& in, const std::string& name);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_FILES_FOLDER_H_
