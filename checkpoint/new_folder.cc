#include "apogee/checkpoint/new_folder.h"

#include <random>

#include "apogee/checkpoint/agreement.h"
#include "apogee/core/text.h"

namespace apogee::checkpoint {
namespace {

std::string NameOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

// Beside the final folder, of a name that no other try has.
std::string TemporaryPath(const std::string& path) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::random_device random;
  std::string nonce;
  for (int i = 0; i < 8; ++i) nonce += kDigits[random() % 16];
  return JoinPath(ParentOf(path), kTemporaryPrefix + NameOf(path) + "-" + nonce);
}

// Before anything has been written for nothing. A file system that cannot tell may have the room.
absl::Status CheckRoom(FileSystem& files, const std::string& path, int64_t bytes) {
  const absl::StatusOr<int64_t> free = files.FreeBytes(ParentOf(path));
  if (!free.ok() || *free >= bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(internal::Concat(path, ": the save is ", FormatBytes(bytes),
                                                       ", only ", FormatBytes(*free),
                                                       " are free there; nothing was written"));
}

}  // namespace

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : (slash == 0 ? "/" : path.substr(0, slash));
}

absl::StatusOr<NewFolder> NewFolder::Make(FileSystem& files, const std::string& path, int64_t bytes,
                                          const comm::GroupPtr& group, const ContextPtr& context) {
  std::string target = path, folder;
  while (target.size() > 1 && target.back() == '/') target.pop_back();
  absl::Status made;
  if (group == nullptr || group->rank() == 0) {
    folder = TemporaryPath(target);
    // Found again by rename; here, before anything has been written for nothing.
    const absl::StatusOr<std::vector<std::string>> taken = files.List(target);
    made = taken.ok() ? absl::AlreadyExistsError(target +
                                                 ": there is a folder already; nothing is "
                                                 "overwritten")
                      : CheckRoom(files, target, bytes);
    if (made.ok()) made = files.MakeDir(folder);
  }
  APOGEE_RETURN_IF_ERROR(AgreeOnStatus(made, group, context));
  return NewFolder(files, target, GatherTexts(folder, group, context)[0]);
}

absl::Status NewFolder::Publish() {
  APOGEE_RETURN_IF_ERROR(files_->SyncDir(temporary_));
  APOGEE_RETURN_IF_ERROR(files_->Rename(temporary_, path_));
  return files_->SyncDir(ParentOf(path_));
}

void NewFolder::Discard() { RemoveFolder(*files_, temporary_).IgnoreError(); }

absl::Status WriteTextFile(FileSystem& files, const std::string& path, const std::string& text) {
  APOGEE_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files.Create(path));
  APOGEE_RETURN_IF_ERROR(file->Append(std::as_bytes(std::span(text))));
  APOGEE_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

}  // namespace apogee::checkpoint
