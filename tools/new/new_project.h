// SPDX-License-Identifier: Apache-2.0

// Writes a project that uses the library: the files of tools/new/template with another name. The
// template itself is a project that scripts/check_install.sh builds, runs and tests.
//
//   const absl::Status status = NewProject(*files, "work/spirals");   // its name: spirals
#ifndef APOGEE_TOOLS_NEW_NEW_PROJECT_H_
#define APOGEE_TOOLS_NEW_NEW_PROJECT_H_

#include <string>

#include "apogee/checkpoint/files/file_system.h"

namespace apogee::tools {

// The last part of `folder` becomes the name of the program. InvalidArgument if it cannot be one;
// AlreadyExists if the folder is there. The folder is complete or absent.
absl::Status NewProject(checkpoint::FileSystem& files, const std::string& folder);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_NEW_NEW_PROJECT_H_
