#include "apogee/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>

#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/checkpoint/new_folder.h"

namespace apogee::checkpoint {
namespace {

constexpr const char* kNamePrefix = "step-";

std::optional<int64_t> StepOf(const std::string& name) {
  if (!name.starts_with(kNamePrefix)) return std::nullopt;
  const char* begin = name.data() + std::string(kNamePrefix).size();
  const char* end = name.data() + name.size();
  int64_t step = 0;
  const auto [reached, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || reached != end || step < 0) return std::nullopt;
  return step;
}

}  // namespace

std::string CheckpointName(int64_t step) {
  char name[40];
  std::snprintf(name, sizeof(name), "%s%08lld", kNamePrefix, static_cast<long long>(step));
  return name;
}

absl::Status MakeFolder(FileSystem& files, const std::string& folder) {
  const size_t end = folder.find_last_not_of('/');
  const size_t slash = end == std::string::npos ? end : folder.rfind('/', end);
  const absl::Status made = files.MakeDir(folder);
  if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  // Also where it was there: an earlier process may have ended between the two.
  return files.SyncDir(slash == std::string::npos ? "."
                       : slash == 0               ? "/"
                                                  : folder.substr(0, slash));
}

absl::StatusOr<FoundCheckpoints> FindCheckpoints(const std::shared_ptr<FileSystem>& files,
                                                 const std::string& folder) {
  APOGEE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files->List(folder));
  FoundCheckpoints found;
  for (const std::string& name : names) {
    const std::optional<int64_t> step = StepOf(name);
    if (!step) continue;
    const auto reader = CheckpointReader::Open(files, JoinPath(folder, name));
    if (reader.ok()) {
      found.valid.push_back({*step, name});
    } else {
      found.rejected.push_back({*step, name, reader.status()});
    }
  }
  std::ranges::stable_sort(found.valid, {}, &FoundCheckpoint::step);
  return found;
}

absl::Status KeepNewest(FileSystem& files, const std::string& folder, const FoundCheckpoints& found,
                        int64_t keep) {
  APOGEE_CHECK(keep >= 2, "keep: ", keep,
               " checkpoints; the newest may turn out to be damaged, so ", "at least 2 are kept");
  const auto valid = static_cast<int64_t>(found.valid.size());
  for (int64_t i = 0; i + keep < valid; ++i) {
    const std::string& name = found.valid[static_cast<size_t>(i)].name;
    const std::string trash = JoinPath(folder, kTrashPrefix + name);
    APOGEE_RETURN_IF_ERROR(RemoveFolder(files, trash));
    APOGEE_RETURN_IF_ERROR(files.Rename(JoinPath(folder, name), trash));
    APOGEE_RETURN_IF_ERROR(files.SyncDir(folder));
    APOGEE_RETURN_IF_ERROR(RemoveFolder(files, trash));
  }
  APOGEE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(folder));
  for (const std::string& name : names) {
    if (!name.starts_with(kTemporaryPrefix) && !name.starts_with(kTrashPrefix)) continue;
    APOGEE_RETURN_IF_ERROR(RemoveFolder(files, JoinPath(folder, name)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> SetAsideIfDamaged(const std::shared_ptr<FileSystem>& files,
                                              const std::string& folder, const std::string& name) {
  const std::string path = JoinPath(folder, name);
  if (absl::IsNotFound(files->List(path).status())) return std::string();
  const auto reader = CheckpointReader::Open(files, path);
  const absl::Status why = reader.ok() ? reader->Verify() : reader.status();
  if (!absl::IsDataLoss(why) && !absl::IsNotFound(why)) return std::string();
  const std::string aside = JoinPath(folder, "damaged-" + name);
  APOGEE_RETURN_IF_ERROR(RemoveFolder(*files, aside));
  APOGEE_RETURN_IF_ERROR(files->Rename(path, aside));
  APOGEE_RETURN_IF_ERROR(files->SyncDir(folder));
  return Message(why);
}

}  // namespace apogee::checkpoint
