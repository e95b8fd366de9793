// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/files/folder.h"

namespace apogee::checkpoint {
namespace {

// Each level takes a descriptor; checkpoints have one level.
constexpr int kMaxDepth = 32;

absl::Status RemoveAll(Folder& in, const std::string& name, int depth) {
  const absl::StatusOr<std::unique_ptr<Folder>> folder = in.OpenFolder(name);
  if (absl::IsNotFound(folder.status())) return absl::OkStatus();
  if (absl::IsFailedPrecondition(folder.status())) {
    const absl::Status removed = in.RemoveFile(name);
    return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
  }
  APOGEE_RETURN_IF_ERROR(folder.status());
  if (depth == kMaxDepth) {
    return InvalidArgument(name, ": cannot remove it: more than ", kMaxDepth,
                           " folders lie in one another");
  }
  APOGEE_ASSIGN_OR_RETURN(const std::vector<std::string> names, (*folder)->List());
  absl::Status first;
  for (const std::string& inner : names) first.Update(RemoveAll(**folder, inner, depth + 1));
  return first.ok() ? in.RemoveDir(name) : first;
}

}  // namespace

absl::Status RemoveAll(Folder& in, const std::string& name) { return RemoveAll(in, name, 1); }

}  // namespace apogee::checkpoint
