// SPDX-License-Identifier: Apache-2.0

// A folder that gets its name when it is complete: until then it is `to` + ".partial".
//
//   OkOrThrow(RemovePartial("out/model"));              // what a run that was killed has left
//   ... fill PartialOf("out/model") ...
//   OkOrThrow(PublishPartial("out/model"));
#ifndef APOGEE_DRIVER_MODEL_FOLDER_PARTIAL_FOLDER_H_
#define APOGEE_DRIVER_MODEL_FOLDER_PARTIAL_FOLDER_H_

#include <string>

#include "apogee/core/status.h"

namespace apogee::driver {

std::string PartialOf(const std::string& to);
// NotFound if the folder that shall hold `to` does not exist.
absl::Status RemovePartial(const std::string& to);
// Syncs the folder and renames it. The files in it must be synced.
absl::Status PublishPartial(const std::string& to);

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_MODEL_FOLDER_PARTIAL_FOLDER_H_
