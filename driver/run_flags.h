// SPDX-License-Identifier: Apache-2.0

// The flags that every training program has: data, training, ranks, checkpoints, report.
//
//   driver::RunFlags flags{.steps = 600};                  // defaults of this program
//   flags.Declare(line);
//   line.Parse(argc, argv, [&] { flags.Settle(line); });
//   auto optimizer = flags.MakeOptimizer(model.Parameters());
//
// A program adds its own optimizers and schedules to `optimizers` and `schedules` before Declare;
// --optimizer and --schedule then know them.
#ifndef APOGEE_DRIVER_RUN_FLAGS_H_
#define APOGEE_DRIVER_RUN_FLAGS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apogee/booster/run_record.h"
#include "apogee/comm/launch.h"
#include "apogee/driver/corpus.h"
#include "apogee/optim/registry.h"
#include "apogee/optim/schedule/lr_schedule_registry.h"
#include "apogee/plugins/training_options.h"

namespace apogee::driver {

struct CheckpointFlags {
  int64_t save_every = 0;  // steps; 0: never
  std::string resume;      // empty: a new run; "auto": OUT/checkpoints; or a folder
  int64_t keep = 3;
  bool async_save = false;  // write in the background, during training
};

// Which of the flags a program has.
struct RunFlagSet {
  bool accumulate = true;
  bool schedule = true;  // --schedule, --warmup
  bool sample = true;    // --sample, --temperature
  bool prompt = true;    // --prompt, with --sample
  bool epochs = false;   // --epochs
};

// bf16 if the processor has bf16 multiplication, else f32: the meaning of --precision auto.
Precision FastPrecision();

struct RunFlags : DataFlags {
  // Names that --optimizer and --schedule know.
  optim::OptimizerRegistry optimizers;
  optim::LrScheduleRegistry schedules;

  std::string out;  // empty: no files

  int64_t steps = 1000;
  double epochs = 0;  // passes over the training samples, which then give the steps; 0: `steps`
  int64_t batch = 8;  // samples per micro-batch, of all ranks together
  int64_t accumulate = 1;
  std::string optimizer = "adamw";
  double lr = 1e-3;
  optim::OptionMap optimizer_options;  // lr included
  std::string schedule = "cosine";
  int64_t warmup = -1;                // negative: a tenth of the steps, if the schedule has one
  optim::OptionMap schedule_options;  // total_steps and warmup_steps included
  TrainingOptions training = {.max_norm = 1.0};
  bool narrow_residual = false;  // training.f32_residual
  uint64_t seed = 1;

  int ranks = 1;
  int threads = 0;  // of all ranks together; 0: one per core
  int threads_per_rank = 1;
  std::string device = "cpu";
  comm::Backend backend = comm::Backend::kAuto;
  double timeout_seconds = 60;
  std::string flight_records;  // empty: none

  CheckpointFlags checkpoints;
  std::string trace;    // empty: none
  bool report = false;  // write OUT/report.html at the end
  bool print_events = false;
  int64_t log_every = 100;
  std::string prompt = "In the beginning";
  int64_t sample = 400;  // tokens
  double temperature = 0.8;

  // Adds the flags, with the present values as defaults.
  void Declare(CommandLine& line, const RunFlagSet& set = {});
  // Fills in the values that depend on each other, and checks all of them. Throws Error with one
  // sentence.
  void Settle(const CommandLine& line);

  // Replaces the steps by those of the epochs, if there are any; `samples`: of an epoch. For
  // driver::Run, before the ranks start.
  void SettleEpochs(int64_t samples);

  // Throws Error, naming batch sizes that would work, unless `parts` divides the batch. `reason`
  // describes the parts.
  void CheckBatch(int64_t parts, const std::string& reason) const;
  // CheckBatch for replicas of a model on `replica_ranks` ranks each. `flags` are those that say
  // so: "--ranks, --tp and --pp". If the replicas do not divide the ranks, boost reports it.
  void CheckReplicas(int replica_ranks, const std::string& flags) const;

  // These throw Error for a wrong name or option.
  std::unique_ptr<optim::Optimizer> MakeOptimizer(
      std::vector<autograd::ParameterPtr> parameters) const;
  optim::LrSchedule MakeSchedule() const;
  // About the bytes of parameters, gradients, masters and optimizer states that one rank with a
  // whole model of so many parameters has.
  int64_t ModelDataBytes(int64_t num_parameters) const;

  // What a checkpoint records of these flags and of `own` settings of the program. A resumed run is
  // compared with it.
  RunConfig Config(RunConfig::Texts own) const;
};

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_RUN_FLAGS_H_
