// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/files/new_folder.h"

#include <random>

#include "apogee/checkpoint/agreement.h"
#include "apogee/core/text/text.h"

namespace apogee::checkpoint {
namespace {

// A path beside the final folder, with a name that no other attempt has.
std::string TemporaryPath(const std::string& path) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::random_device random;
  std::string nonce;
  for (int i = 0; i < 8; ++i) nonce += kDigits[random() % 16];
  return JoinPath(ParentOf(path), kTemporaryPrefix + NameOf(path) + "-" + nonce);
}

// rename checks this again. Checking here avoids writing everything for nothing.
absl::Status CheckFree(FileSystem& files, const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(const PathKind kind, files.KindOf(path));
  if (kind == PathKind::kNothing) return absl::OkStatus();
  return absl::AlreadyExistsError(
      internal::Concat(path, ": there is a ", PathKindName(kind),
                       kind == PathKind::kFolder ? " already" : " of that name",
                       "; nothing is overwritten: move it away, or choose another name"));
}

// If the file system cannot tell, there may be room.
absl::Status CheckRoom(FileSystem& files, const std::string& path, int64_t bytes) {
  const absl::StatusOr<int64_t> free = files.FreeBytes(ParentOf(path));
  if (!free.ok() || *free >= bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(internal::Concat(path, ": the save is ", FormatBytes(bytes),
                                                       ", only ", FormatBytes(*free),
                                                       " are free there; nothing was written"));
}

}  // namespace

absl::StatusOr<NewFolder> NewFolder::Make(FileSystem& files, const std::string& path, int64_t bytes,
                                          const comm::GroupPtr& group) {
  std::string target = path, folder;
  while (target.size() > 1 && target.back() == '/') target.pop_back();
  absl::Status made;
  if (group == nullptr || group->rank() == 0) {
    folder = TemporaryPath(target);
    made = CheckFree(files, target);
    if (made.ok()) made = CheckRoom(files, target, bytes);
    if (made.ok()) made = files.MakeDir(folder);
  }
  APOGEE_RETURN_IF_ERROR(AgreeOnStatus(made, group));
  return NewFolder(files, target, GatherTexts(folder, group)[0]);
}

absl::Status NewFolder::Publish() {
  APOGEE_ASSIGN_OR_RETURN(const std::unique_ptr<Folder> above, files_->OpenFolder(ParentOf(path_)));
  APOGEE_ASSIGN_OR_RETURN(const std::unique_ptr<Folder> filled,
                          above->OpenFolder(NameOf(temporary_)));
  APOGEE_RETURN_IF_ERROR(filled->Sync());
  APOGEE_RETURN_IF_ERROR(above->Rename(NameOf(temporary_), NameOf(path_)));
  return above->Sync();
}

void NewFolder::Discard() {
  const auto above = files_->OpenFolder(ParentOf(path_));
  if (above.ok()) RemoveAll(**above, NameOf(temporary_)).IgnoreError();
}

absl::Status WriteTextFile(FileSystem& files, const std::string& path, const std::string& text) {
  APOGEE_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files.Create(path));
  APOGEE_RETURN_IF_ERROR(file->Append(std::as_bytes(std::span(text))));
  APOGEE_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

}  // namespace apogee::checkpoint
