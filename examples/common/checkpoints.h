// SPDX-License-Identifier: Apache-2.0

// Checkpoints of a training program: its flags, going on where a run left off, saving every so
// often, and on SIGTERM or SIGINT leaving after the step at hand.
//
//   if (flags.checkpoints.save_every > 0) CatchStopSignals();             // main, before any rank
//   booster.set_run_config(DescribeRun("adamw", flags.checkpoints, {...}));  // before boost
//   RunCheckpoints checkpoints(booster, world, {...});                       // after boost
//   const int64_t done = checkpoints.Start();                                // 0: a new run
//   if (checkpoints.IsFinished(done, metrics)) return 0;
//   for each step behind `done`:
//     stop = sum over ranks of StopSignals();
//     if (checkpoints.AfterStep(step, stop)) break;
//     for (const std::string& note : checkpoints.TakeNotes()) ...
//   return checkpoints.exit_code();
#ifndef APOGEE_EXAMPLES_COMMON_CHECKPOINTS_H_
#define APOGEE_EXAMPLES_COMMON_CHECKPOINTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/booster/metrics.h"
#include "apogee/booster/run_lock.h"
#include "apogee/comm/launch.h"
#include "apogee/data/text_corpus.h"

namespace CLI {
class App;
}  // namespace CLI

struct CheckpointFlags {
  int64_t save_every = 0;  // steps; 0: never
  std::string resume;      // empty: a new run; "auto": OUT/checkpoints; else a folder of them
  int64_t keep = 3;
  bool async_save = false;  // written while training goes on
};

// Adds --save-every, --resume, --keep and --async-save.
void DeclareCheckpointFlags(CLI::App& app, CheckpointFlags& flags);
// Throws Error for flags that do not go together; `out`: what --out says.
void CheckCheckpointFlags(const CLI::App& app, const CheckpointFlags& flags,
                          const std::string& out);

// From here on the first SIGTERM or SIGINT is only noted; a second one ends the process at once.
void CatchStopSignals();
// 1 for a signal that has come, {SIGTERM, SIGINT}. Ranks may see it at different steps: sum it over
// them, and all leave at the same one.
std::vector<double> StopSignals();

// The flags that are about checkpoints, and what else every program's run has, as settings of its
// RunConfig; `optimizer` and the criterion as its identity.
apogee::RunConfig DescribeRun(const std::string& optimizer, const CheckpointFlags& flags,
                              apogee::RunConfig::Texts settings);

struct RunCheckpointsOptions {
  CheckpointFlags flags;
  std::string out;    // empty: no files
  int64_t steps = 0;  // of the whole run
  // What decides which samples a step has. A run resumes on the same data only.
  std::string data;
};

// "seed 1, 8 samples of 128 bytes per step, 3724065 bytes of text (crc 1a2b3c4d)".
std::string DescribeData(const apogee::data::TextCorpus& corpus, uint64_t seed, int64_t samples,
                         int64_t block);

// Every rank has one and makes the same calls.
class RunCheckpoints {
 public:
  RunCheckpoints(apogee::Booster& booster, const apogee::comm::World& world,
                 RunCheckpointsOptions options)
      : booster_(booster), world_(world), options_(std::move(options)) {}

  // The step that is done already; 0 for a new run. Makes the folder of the output and takes its
  // lock, until this object goes: before anything is written there. Collective. Throws Error where
  // another run has the folder, where the checkpoints do not fit the run, and for a new run beside
  // checkpoints of another.
  int64_t Start();
  // Whether all steps are done and, on rank 0, `metrics` says that they are validated: then there
  // is nothing left to do, which is noted. The same on every rank. Collective.
  bool IsFinished(int64_t done, const apogee::MetricsLogger* metrics);
  // Saves where it is time to. `stop`: StopSignals(), summed over the ranks. True: leave the loop.
  // Collective. Throws Error when a save fails.
  bool AfterStep(int64_t step, const std::vector<double>& stop);

  // Lines for people since the last call, on rank 0.
  std::vector<std::string> TakeNotes() { return std::exchange(notes_, {}); }
  // 0, or 128 plus the number of the signal that ended the run.
  int exit_code() const { return exit_code_; }

 private:
  std::string own_folder() const { return options_.out + "/checkpoints"; }
  void Save(int64_t step);
  // Says that a save in the background is done; `wait`: once it is.
  void NoteSaved(bool wait);
  void RefuseForeignCheckpoints(const std::string& resumed_from) const;

  apogee::Booster& booster_;
  const apogee::comm::World& world_;
  RunCheckpointsOptions options_;
  std::unique_ptr<apogee::RunLock> lock_;  // on rank 0
  std::vector<std::string> notes_;
  bool has_checked_space_ = false;
  int64_t saving_ = -1;  // the step, until it is said to be saved
  int exit_code_ = 0;
};

#endif  // APOGEE_EXAMPLES_COMMON_CHECKPOINTS_H_
