// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/checkpoints.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "apogee/checkpoint/checkpoint_folder.h"
#include "apogee/core/text/text.h"
#include "apogee/driver/reports.h"

namespace apogee::driver {
namespace {

constexpr const char* kDataKey = "data";

std::atomic<bool> terminate = false, interrupt = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler sets them");

void NoteSignal(int signal) { (signal == SIGTERM ? terminate : interrupt) = true; }

}  // namespace

void CatchStopSignals() {
  struct sigaction action {};
  action.sa_handler = NoteSignal;
  // A second signal has its default effect.
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGTERM, SIGINT}) sigaction(signal, &action, nullptr);
}

std::array<double, 2> StopSignals() { return {terminate ? 1.0 : 0.0, interrupt ? 1.0 : 0.0}; }

std::string DescribeData(const Corpus& corpus, uint64_t seed, int64_t samples, int64_t block) {
  return "seed " + std::to_string(seed) + ", " + std::to_string(samples) + " samples of " +
         std::to_string(block) + " " + corpus.unit + " per step, " + corpus.fingerprint;
}

// The next resume would mix up the steps of two runs in one folder.
void CheckpointKeeper::RefuseForeignCheckpoints(const std::string& resumed_from) const {
  if (options_.flags.save_every == 0 || world_.rank() != 0) return;
  std::error_code error;
  if (std::filesystem::equivalent(resumed_from, own_folder(), error)) return;
  const auto found = checkpoint::FindCheckpoints(checkpoint::RealFileSystem(), own_folder());
  if (!found.ok() || (found->valid.empty() && found->rejected.empty())) return;
  Throw(own_folder(), " has checkpoints of another run (",
        found->valid.empty() ? found->rejected.back().name : found->valid.back().name,
        "); go on with --resume auto, or choose another --out");
}

int64_t CheckpointKeeper::Start() {
  if (!options_.out.empty()) {
    lock_ = ValueOrThrow(RunLock::TakeForAll(options_.out, world_.group()));
    if (lock_ != nullptr && !lock_->notice().empty()) notes_.push_back("note: " + lock_->notice());
  }
  const bool automatic = options_.flags.resume == "auto";
  const std::string folder = automatic ? own_folder() : options_.flags.resume;
  if (!folder.empty()) {
    const absl::StatusOr<Resumed> resumed = booster_.resume(folder);
    if (resumed.ok()) {
      RefuseForeignCheckpoints(folder);
      const RunPosition& position = resumed->position;
      const auto data = position.extra.find(kDataKey);
      const std::string saved = data == position.extra.end() ? "unknown data" : data->second;
      APOGEE_CHECK(saved == options_.data, resumed->path, " is of a run on ", saved,
                   "; this one is on ", options_.data,
                   "; use the flags of that run, or another --out for a new run");
      APOGEE_CHECK(position.step <= options_.steps, resumed->path, " is at step ", position.step,
                   ", behind the last of --steps ", options_.steps);
      notes_.insert(notes_.end(), resumed->notices.begin(), resumed->notices.end());
      notes_.push_back("resumed from " + resumed->path + " at step " +
                       std::to_string(position.step));
      return position.step;
    }
    if (!automatic || !absl::IsNotFound(resumed.status())) OkOrThrow(resumed.status());
    notes_.push_back("nothing to resume in " + folder + ": a new run");
  }
  RefuseForeignCheckpoints("");
  return 0;
}

bool CheckpointKeeper::IsFinished(int64_t done, const MetricsLogger* metrics) {
  if (done < options_.steps) return false;
  const bool validated = metrics != nullptr && metrics->has_validation(options_.steps);
  if (SumOverRanks(world_, {validated ? 1.0 : 0.0})[0] == 0) return false;
  notes_.push_back("all " + std::to_string(options_.steps) +
                   " steps are done and validated: there is nothing to do; give more --steps to go "
                   "on, or leave --out out to validate again and for another sample");
  return true;
}

void CheckpointKeeper::NoteSaved(bool wait) {
  if (wait) OkOrThrow(booster_.wait_for_saves());
  // Leave an error to the next save, which all ranks reach at the same step.
  if (saving_ < 0 || booster_.save_status() != absl::OkStatus()) return;
  notes_.push_back("saved step " + std::to_string(saving_));
  saving_ = -1;
}

void CheckpointKeeper::Save(int64_t step) {
  NoteSaved(/*wait=*/true);
  // The output folder is as new as the run: unless it is synced, a power failure could lose it with
  // everything in it.
  if (world_.rank() == 0)
    OkOrThrow(checkpoint::MakeFolder(*checkpoint::RealFileSystem(), options_.out));
  const auto notice = [this](const std::string& text) { notes_.push_back("note: " + text); };
  OkOrThrow(booster_.save_training_state(
      own_folder(), {.step = step, .extra = {{kDataKey, options_.data}}},
      {.keep = options_.flags.keep, .use_async = options_.flags.async_save, .notice = notice}));
  saving_ = step;
}

bool CheckpointKeeper::AfterStep(int64_t step, const std::array<double, 2>& stop) {
  const CheckpointFlags& flags = options_.flags;
  if (flags.save_every == 0) return false;
  // After the first step, because only then the optimizer has its states.
  if (!std::exchange(has_checked_space_, true)) OkOrThrow(booster_.check_space(options_.out));
  const int signal = stop[0] > 0 ? SIGTERM : stop[1] > 0 ? SIGINT : 0;
  const bool last = step == options_.steps || signal != 0;
  if (step % flags.save_every == 0 || last) Save(step);
  NoteSaved(/*wait=*/last);
  if (signal == 0) return false;
  notes_.push_back(std::string(signal == SIGTERM ? "SIGTERM" : "SIGINT") + ": left after step " +
                   std::to_string(step) + "; --resume auto goes on");
  exit_code_ = 128 + signal;
  return true;
}

}  // namespace apogee::driver
