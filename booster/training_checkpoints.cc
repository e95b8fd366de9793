// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/training_checkpoints.h"

#include <algorithm>
#include <cstdio>
#include <ranges>
#include <utility>

#include "apogee/booster/replica_check.h"
#include "apogee/checkpoint/agreement.h"
#include "apogee/checkpoint/checkpoint_folder.h"
#include "apogee/core/text/printable.h"
#include "apogee/core/text/text.h"

namespace apogee {
namespace {

using checkpoint::FileSystem;

// A checkpoint that resume tries, or one that it can reject at once.
struct Candidate {
  int64_t step = 0;
  std::string name;
  absl::Status why_not;  // ok: valid, as far as can be told without reading everything
};

// Newest first.
absl::StatusOr<std::vector<Candidate>> ListCandidates(const std::shared_ptr<FileSystem>& files,
                                                      const std::string& folder) {
  APOGEE_ASSIGN_OR_RETURN(const checkpoint::FoundCheckpoints found,
                          checkpoint::FindCheckpoints(files, folder));
  std::vector<Candidate> all;
  for (const auto& valid : found.valid) all.push_back({valid.step, valid.name, absl::OkStatus()});
  for (const auto& rejected : std::views::reverse(found.rejected)) {
    std::string why = Message(rejected.why);
    std::erase(why, '\0');  // Pack uses it as a separator
    all.push_back({rejected.step, rejected.name, absl::Status(rejected.why.code(), why)});
  }
  std::ranges::stable_sort(all, std::ranges::greater{}, &Candidate::step);
  if (all.empty()) return NotFound(folder, ": there is no checkpoint in it");
  return all;
}

// Three texts, each ended by a zero byte, per candidate.
std::string Pack(const std::vector<Candidate>& candidates) {
  std::string text;
  for (const auto& [step, name, why_not] : candidates) {
    text += name + '\0' + std::to_string(why_not.raw_code()) + '\0' + Message(why_not) + '\0';
  }
  return text;
}

std::vector<Candidate> Unpack(const std::string& text) {
  auto take = [&text, at = size_t{0}]() mutable {
    const size_t begin = std::exchange(at, text.find('\0', at) + 1);
    return text.substr(begin, at - 1 - begin);
  };
  std::vector<Candidate> candidates(
      static_cast<size_t>(std::count(text.begin(), text.end(), '\0') / 3));
  for (Candidate& candidate : candidates) {
    candidate.name = take();
    const auto code = static_cast<absl::StatusCode>(std::stoi(take()));
    candidate.why_not = absl::Status(code, take());
  }
  return candidates;
}

// Locks the folder: another run's saves would remove this run's checkpoints as old or as leftovers.
absl::Status LockFolder(const std::string& folder, const SaveOptions& options,
                        std::unique_ptr<RunLock>& lock) {
  if (options.files != checkpoint::RealFileSystem()) return absl::OkStatus();
  if (lock != nullptr && lock->folder() == folder) return absl::OkStatus();
  lock.reset();
  APOGEE_ASSIGN_OR_RETURN(lock, RunLock::Take(folder));
  if (!lock->notice().empty()) options.notice(lock->notice());
  return absl::OkStatus();
}

// Prepares the folder on rank 0 before a save. `passed_over`: as in SetAsideIfDamaged.
absl::Status MakeRoom(const std::string& folder, const std::string& name,
                      const std::string& passed_over, const SaveOptions& options,
                      std::unique_ptr<RunLock>& lock) {
  APOGEE_RETURN_IF_ERROR(checkpoint::MakeFolder(*options.files, folder));
  APOGEE_RETURN_IF_ERROR(LockFolder(folder, options, lock));
  APOGEE_ASSIGN_OR_RETURN(const std::optional<checkpoint::SetAside> aside,
                          checkpoint::SetAsideIfDamaged(options.files, folder, name, passed_over));
  if (aside) {
    options.notice(
        internal::Concat(name, " was damaged and is now ", aside->name, ": ", aside->why));
  }
  return absl::OkStatus();
}

// Counts only checkpoints before the new one. Later ones belong to a run that was given up; they
// may be the reason for it.
std::vector<absl::Status> RemoveOld(const std::string& folder, int64_t step,
                                    const SaveOptions& options) {
  auto found = checkpoint::FindCheckpoints(options.files, folder);
  if (!found.ok()) return {found.status()};
  std::erase_if(found->valid, [step](const auto& valid) { return valid.step > step; });
  return checkpoint::KeepNewest(*options.files, folder, *found, options.keep);
}

// The part of a save that needs no tensors except those of `save`.
absl::Status SaveInFolder(checkpoint::PlannedSave& save, const std::string& folder, int64_t step,
                          const std::string& passed_over, const SaveOptions& options,
                          std::unique_ptr<RunLock>& lock, const comm::GroupPtr& group) {
  const bool leads = group == nullptr || group->rank() == 0;
  const std::string name = checkpoint::CheckpointName(step);
  APOGEE_RETURN_IF_ERROR(checkpoint::AgreeOnStatus(
      leads ? MakeRoom(folder, name, passed_over, options, lock) : absl::OkStatus(), group));
  APOGEE_RETURN_IF_ERROR(save.Write({options.files, checkpoint::JoinPath(folder, name)}, group));
  if (!leads) return absl::OkStatus();
  for (const absl::Status& problem : RemoveOld(folder, step, options)) {
    options.notice("an older checkpoint could not be removed: " + Message(problem));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TrainingCheckpoints::Save(const TrainingParts& parts, const std::string& folder,
                                       const RunPosition& position, const SaveOptions& given,
                                       SaveRunner& runner) {
  if (given.keep < 2) {
    return InvalidArgument("save_training_state: keep must be at least 2, got ", given.keep,
                           ": the newest checkpoint may turn out to be damaged");
  }
  if (position.step < 0) {
    return InvalidArgument("save_training_state: step must not be negative, got ", position.step);
  }
  APOGEE_RETURN_IF_ERROR(runner.Wait());
  SaveOptions options = given;
  if (!options.notice) {
    options.notice = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  }
  // The saving thread collects notices; this thread reports them.
  if (options.use_async) options.notice = runner.Keep(options.notice);
  SyncReplicas(parts.plugin, parts.optimizer);
  APOGEE_ASSIGN_OR_RETURN(const SaveRunner::Save save, TrainingState(parts).Plan(position));
  // A checkpoint that resume could not use must not stop the run when it reaches that step again.
  std::string passed_over;
  const auto known =
      passed_over_.find(checkpoint::JoinPath(folder, checkpoint::CheckpointName(position.step)));
  if (known != passed_over_.end()) {
    passed_over = known->second;
    passed_over_.erase(known);
  }
  return runner.Run(options.use_async, parts.plugin.group(), save,
                    [save, options, folder, passed_over, step = position.step,
                     &lock = lock_](const comm::GroupPtr& group) {
                      return SaveInFolder(*save, folder, step, passed_over, options, lock, group);
                    });
}

absl::StatusOr<Resumed> TrainingCheckpoints::Resume(const TrainingParts& parts,
                                                    const std::string& folder,
                                                    const std::shared_ptr<FileSystem>& files,
                                                    const SaveRunner& runner) {
  runner.Settle();  // the running save may be the newest
  const comm::GroupPtr group = parts.plugin.group();
  // One rank lists them, so that all ranks try the same ones in the same order.
  absl::StatusOr<std::vector<Candidate>> listed = std::vector<Candidate>();
  if (group == nullptr || group->rank() == 0) listed = ListCandidates(files, folder);
  APOGEE_RETURN_IF_ERROR(checkpoint::AgreeOnStatus(listed.status(), group));
  const std::vector<Candidate> candidates =
      Unpack(checkpoint::GatherTexts(Pack(*listed), group)[0]);

  TrainingState state(parts);
  Resumed resumed;
  for (const Candidate& candidate : candidates) {
    const std::string path = checkpoint::JoinPath(folder, candidate.name);
    absl::Status why_not = candidate.why_not;
    if (why_not.ok()) {
      absl::StatusOr<RunPosition> loaded = state.Load(files, path);
      if (loaded.ok()) {
        resumed.path = path;
        resumed.position = *std::move(loaded);
        for (const std::string& notice : state.notices()) {
          resumed.notices.push_back(Printable(candidate.name + ": " + notice));
        }
        return resumed;
      }
      why_not = loaded.status();
    }
    // If the checkpoint may be whole (a newer format, another model, cannot be opened now), don't
    // silently continue from an older one. If all are damaged, don't return NotFound: the caller
    // would start anew.
    if (!checkpoint::IsDamage(why_not)) return why_not;
    passed_over_[path] = Message(why_not);
    resumed.notices.push_back(
        PrintableLines(candidate.name + " was passed over: " + Message(why_not)));
  }
  std::string all;
  for (const std::string& notice : resumed.notices) all += "\n  " + notice;
  return DataLoss(folder,
                  ": none of its checkpoints can be used; to start anew, move them away:", all);
}

absl::Status TrainingCheckpoints::CheckSpace(const TrainingParts& parts, const std::string& folder,
                                             int64_t checkpoints,
                                             const std::shared_ptr<FileSystem>& files) {
  APOGEE_ASSIGN_OR_RETURN(const auto save, TrainingState(parts).Plan({}));
  const int64_t bytes = save->total_bytes();
  const absl::StatusOr<int64_t> free = files->FreeBytes(folder);
  absl::Status status;
  // If the file system cannot tell, there may be room; if the folder is missing, there is none.
  if (absl::IsNotFound(free.status())) status = free.status();
  if (free.ok() && *free < checkpoints * bytes) {
    status = absl::ResourceExhaustedError(internal::Concat(
        folder, ": ", checkpoints, " checkpoints of ", FormatBytes(bytes), " need ",
        FormatBytes(checkpoints * bytes), ", only ", FormatBytes(*free), " are free"));
  }
  return checkpoint::AgreeOnStatus(status, parts.plugin.group());
}

}  // namespace apogee
