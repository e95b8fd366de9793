// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/model_folder/partial_folder.h"

#include "apogee/checkpoint/files/file_system.h"

namespace apogee::driver {

using checkpoint::FileSystem;

std::string PartialOf(const std::string& to) { return to + ".partial"; }

absl::Status RemovePartial(const std::string& to) {
  FileSystem& files = *checkpoint::RealFileSystem();
  APOGEE_ASSIGN_OR_RETURN(const auto parent, files.OpenFolder(checkpoint::ParentOf(to)));
  return checkpoint::RemoveAll(*parent, checkpoint::NameOf(PartialOf(to)));
}

absl::Status PublishPartial(const std::string& to) {
  FileSystem& files = *checkpoint::RealFileSystem();
  APOGEE_RETURN_IF_ERROR(files.SyncDir(PartialOf(to)));
  APOGEE_ASSIGN_OR_RETURN(const auto parent, files.OpenFolder(checkpoint::ParentOf(to)));
  APOGEE_RETURN_IF_ERROR(parent->Rename(checkpoint::NameOf(PartialOf(to)), checkpoint::NameOf(to)));
  return parent->Sync();
}

}  // namespace apogee::driver
