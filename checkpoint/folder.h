// SPDX-License-Identifier: Apache-2.0

// Folder: an open folder. What is done with its names is done in that very folder, wherever its
// path leads by now, and to what has the name, never to what a link of that name leads to.
//
//   APOGEE_ASSIGN_OR_RETURN(const std::unique_ptr<Folder> folder, files.OpenFolder("run"));
//   APOGEE_RETURN_IF_ERROR(folder->Rename("step-1", ".trash-step-1"));
//   APOGEE_RETURN_IF_ERROR(folder->Sync());
//   absl::Status removed = RemoveAll(*folder, ".trash-step-1");
//
// Names are single ones: components of a path. Errors are those of file_system.h.
#ifndef APOGEE_CHECKPOINT_FOLDER_H_
#define APOGEE_CHECKPOINT_FOLDER_H_

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
  // A folder in this one. FailedPrecondition for what is none, a link to a folder included;
  // PermissionDenied for another device's, or one that is mounted there.
  virtual absl::StatusOr<std::unique_ptr<Folder>> OpenFolder(const std::string& name) = 0;
  // Atomic. `to` must not exist.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // Not a folder.
  virtual absl::Status RemoveFile(const std::string& name) = 0;
  // An empty one.
  virtual absl::Status RemoveDir(const std::string& name) = 0;
  // The names in it survive a power cut.
  virtual absl::Status Sync() = 0;
};

// Removes what has that name: a file, a link, or a folder with everything in it. Of a link the link
// alone goes; what is mounted stays. Goes on where something cannot be removed, and returns the
// first error. What is missing already is fine.
absl::Status RemoveAll(Folder& in, const std::string& name);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_FOLDER_H_
