// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <set>

#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/checkpoint/files/new_folder.h"
#include "apogee/core/text/json_reader.h"

namespace apogee::checkpoint {
namespace {

constexpr const char* kNamePrefix = "step-";
constexpr int kMaxSetAside = 1000;  // per step

std::optional<int64_t> StepOf(const std::string& name) {
  if (!name.starts_with(kNamePrefix)) return std::nullopt;
  const char* begin = name.data() + std::string(kNamePrefix).size();
  const char* end = name.data() + name.size();
  int64_t step = 0;
  const auto [reached, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || reached != end || step < 0) return std::nullopt;
  return step;
}

// Opens a checkpoint of this step that is whole, as far as sizes and the manifest tell.
absl::StatusOr<CheckpointReader> OpenStep(const std::shared_ptr<FileSystem>& files,
                                          const std::string& path, int64_t step) {
  APOGEE_ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::Open(files, path));
  const auto saved = reader.attributes().find("step");
  if (saved != reader.attributes().end() && saved->second != std::to_string(step)) {
    return DataLoss(path, ": holds the checkpoint of step \"", Shortened(saved->second),
                    "\", not of step ", step, "; give it the name of its own step");
  }
  return reader;
}

absl::Status RemoveCheckpoint(Folder& folder, const std::string& name) {
  const std::string trash = kTrashPrefix + name;
  APOGEE_RETURN_IF_ERROR(RemoveAll(folder, trash));
  APOGEE_RETURN_IF_ERROR(folder.Rename(name, trash));
  // Without it a power cut could bring back the name of a half-removed checkpoint.
  APOGEE_RETURN_IF_ERROR(folder.Sync());
  return RemoveAll(folder, trash);
}

}  // namespace

bool IsDamage(const absl::Status& why) { return absl::IsDataLoss(why) || absl::IsNotFound(why); }

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
  if (!made.ok() && absl::IsNotFound(files.OpenFolder(folder).status())) {
    APOGEE_ASSIGN_OR_RETURN(const PathKind kind, files.KindOf(folder));
    return absl::AlreadyExistsError(
        internal::Concat(folder, ": a ", PathKindName(kind), " is in the place of the folder",
                         kind == PathKind::kLink ? ", and leads to none" : "",
                         "; move it away, or choose another folder"));
  }
  // Sync also if the folder existed: an earlier process may have ended between the two calls.
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
    const auto reader = OpenStep(files, JoinPath(folder, name), *step);
    if (reader.ok()) {
      found.valid.push_back({*step, name});
    } else {
      found.rejected.push_back({*step, name, reader.status()});
    }
  }
  std::ranges::stable_sort(found.valid, {}, &FoundCheckpoint::step);
  return found;
}

std::vector<absl::Status> KeepNewest(FileSystem& files, const std::string& path,
                                     const FoundCheckpoints& found, int64_t keep) {
  APOGEE_CHECK(keep >= 2, "keep: ", keep,
               " checkpoints; the newest may turn out to be damaged, so at least 2 are kept");
  const auto folder = files.OpenFolder(path);
  if (!folder.ok()) return {folder.status()};
  std::vector<absl::Status> problems;
  const auto note = [&problems](const absl::Status& status) {
    if (!status.ok()) problems.push_back(status);
  };
  std::set<std::string> tried;
  for (size_t i = 0; i + static_cast<size_t>(keep) < found.valid.size(); ++i) {
    note(RemoveCheckpoint(**folder, found.valid[i].name));
    tried.insert(kTrashPrefix + found.valid[i].name);
  }
  const auto names = (*folder)->List();
  note(names.status());
  if (!names.ok()) return problems;
  for (const std::string& name : *names) {
    if (tried.contains(name)) continue;
    if (name.starts_with(kTemporaryPrefix) || name.starts_with(kTrashPrefix)) {
      note(RemoveAll(**folder, name));
    }
  }
  return problems;
}

absl::StatusOr<std::optional<SetAside>> SetAsideIfDamaged(const std::shared_ptr<FileSystem>& files,
                                                          const std::string& folder,
                                                          const std::string& name,
                                                          const std::string& passed_over) {
  const std::string path = JoinPath(folder, name);
  const std::optional<int64_t> step = StepOf(name);
  APOGEE_CHECK(step, "set aside: \"", name, "\" is not the name of a checkpoint, step-N");
  APOGEE_ASSIGN_OR_RETURN(const PathKind kind, files->KindOf(path));
  if (kind == PathKind::kNothing) return std::nullopt;
  SetAside aside{.name = "damaged-" + name, .why = passed_over};
  if (aside.why.empty()) {
    const auto reader = OpenStep(files, path, *step);
    const absl::Status why = reader.ok() ? reader->Verify() : reader.status();
    if (!IsDamage(why)) return std::nullopt;
    aside.why = Message(why);
  }
  APOGEE_ASSIGN_OR_RETURN(const std::unique_ptr<Folder> in, files->OpenFolder(folder));
  absl::Status renamed = in->Rename(name, aside.name);
  for (int i = 2; absl::IsAlreadyExists(renamed) && i <= kMaxSetAside; ++i) {
    aside.name = internal::Concat("damaged-", name, "-", i);
    renamed = in->Rename(name, aside.name);
  }
  APOGEE_RETURN_IF_ERROR(renamed);
  APOGEE_RETURN_IF_ERROR(in->Sync());
  return aside;
}

}  // namespace apogee::checkpoint
