// SPDX-License-Identifier: Apache-2.0

// The machine's folders, by descriptors: no path is looked up twice.
#ifndef APOGEE_CHECKPOINT_FILES_REAL_FOLDER_H_
#define APOGEE_CHECKPOINT_FILES_REAL_FOLDER_H_

#include <memory>
#include <string>

#include "apogee/checkpoint/files/folder.h"

namespace apogee::checkpoint {

// Opens a folder. Follows a link to a folder, because the caller named the path.
absl::StatusOr<std::unique_ptr<Folder>> OpenRealFolder(const std::string& path);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_FILES_REAL_FOLDER_H_
