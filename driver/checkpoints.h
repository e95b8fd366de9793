// SPDX-License-Identifier: Apache-2.0

// Checkpoints of a training program: resuming, saving every N steps, and stopping after the current
// step on SIGTERM or SIGINT.
//
//   if (flags.checkpoints.save_every > 0) CatchStopSignals();             // main, before any rank
//   CheckpointKeeper checkpoints(booster, world, {...});                       // after boost
//   const int64_t done = checkpoints.Start();                                // 0: a new run
//   if (checkpoints.IsFinished(done, metrics)) return 0;
//   for each step after `done`:
//     stop = sum over ranks of StopSignals();
//     if (checkpoints.AfterStep(step, stop)) break;
//     for (const std::string& note : checkpoints.TakeNotes()) ...
//   return checkpoints.exit_code();
#ifndef APOGEE_DRIVER_CHECKPOINTS_H_
#define APOGEE_DRIVER_CHECKPOINTS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/booster/metrics/metrics.h"
#include "apogee/booster/run_lock.h"
#include "apogee/comm/launch.h"
#include "apogee/driver/corpus.h"
#include "apogee/driver/run_flags.h"

namespace apogee::driver {

// From now on the first SIGTERM or SIGINT is only recorded; a second one ends the process at once.
void CatchStopSignals();
// {SIGTERM, SIGINT}: 1 for each signal received so far, else 0. Ranks may receive a signal at
// different steps: sum the values over the ranks, so that all ranks stop after the same step.
std::array<double, 2> StopSignals();

struct CheckpointKeeperOptions {
  CheckpointFlags flags;
  std::string out;    // empty: no files
  int64_t steps = 0;  // of the whole run
  // Describes everything that determines the samples of a step. A run resumes only on the same
  // data.
  std::string data;
};

// "seed 1, 8 samples of 128 bytes per step, 3724065 bytes of text (crc 1a2b3c4d)".
std::string DescribeData(const Corpus& corpus, uint64_t seed, int64_t samples, int64_t block);

// Every rank makes one and calls it in the same order.
class CheckpointKeeper {
 public:
  CheckpointKeeper(Booster& booster, const comm::World& world, CheckpointKeeperOptions options)
      : booster_(booster), world_(world), options_(std::move(options)) {}

  // Resumes or starts a run. Returns the last step done; 0 for a new run. First makes the output
  // folder and locks it until this object is destroyed. Collective. Throws Error if another run
  // holds the lock, if the checkpoints do not fit this run, or if a new run would write next to
  // another run's checkpoints.
  int64_t Start();
  // True if all steps are done and, according to `metrics` on rank 0, validated: then nothing is
  // left to do, and a note says so. The same on every rank. Collective.
  bool IsFinished(int64_t done, const MetricsLogger* metrics);
  // Saves a checkpoint if it is due. `stop`: StopSignals(), summed over the ranks. If it returns
  // true, leave the loop. Collective. Throws Error if a save fails.
  bool AfterStep(int64_t step, const std::array<double, 2>& stop);

  // Messages for the user since the last call, on rank 0.
  std::vector<std::string> TakeNotes() { return std::exchange(notes_, {}); }
  // 0, or 128 plus the number of the signal that ended the run.
  int exit_code() const { return exit_code_; }

 private:
  std::string own_folder() const { return options_.out + "/checkpoints"; }
  void Save(int64_t step);
  // Notes that a save in the background is done; with `wait`, waits for it first.
  void NoteSaved(bool wait);
  void RefuseForeignCheckpoints(const std::string& resumed_from) const;

  Booster& booster_;
  const comm::World& world_;
  CheckpointKeeperOptions options_;
  std::unique_ptr<RunLock> lock_;  // on rank 0
  std::vector<std::string> notes_;
  bool has_checked_space_ = false;
  int64_t saving_ = -1;  // the step being saved; -1: none
  int exit_code_ = 0;
};

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_CHECKPOINTS_H_
