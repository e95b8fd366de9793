// SPDX-License-Identifier: Apache-2.0

// A training run on text: this rank's samples, metrics, checkpoints, validation and a sample.
//
//   TextRun run(rank, flags, booster, plugin);                  // before boost
//   Boosted boosted = booster.boost(model, *optimizer, {...});
//   if (!run.Start(boosted, scheduler, {.model = "GPT-2", .num_parameters = n})) return 0;
//   for (auto& samples : run.samples()) {
//     ... forward, backward ...
//     run.BeforeStep(loss);
//     boosted.optimizer.step();
//     boosted.optimizer.zero_grad();
//     scheduler.step();
//     if (run.AfterStep()) return run.exit_code();
//   }
//   run.Validate();
//
// Every rank makes one and calls the collective methods in the same order. Rank 0 alone prints and
// writes files.
#ifndef APOGEE_DRIVER_TEXT_RUN_H_
#define APOGEE_DRIVER_TEXT_RUN_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/booster/metrics/metrics.h"
#include "apogee/core/step_listener.h"
#include "apogee/data/loader.h"
#include "apogee/driver/program.h"
#include "apogee/driver/run_flags.h"

namespace apogee {
class StepLog;
namespace report {
struct TrafficRecord;
}
}  // namespace apogee

namespace apogee::driver {

class CheckpointKeeper;
class PeakShare;

// For the first lines of the run.
struct RunDescription {
  std::string model;           // "GPT-2"
  int64_t num_parameters = 0;  // of the whole model
  std::string layout = "";     // follows the ranks: DescribeMesh
};

class TextRun {
 public:
  // Tells the booster where its trace goes. Checkpoints record the flags, and `settings` of the
  // program. All references must outlive the run.
  TextRun(const Rank& rank, const RunFlags& flags, Booster& booster, const Plugin& plugin,
          RunConfig::Texts settings = {});
  ~TextRun();

  // After boost: makes the data, locks the output folder, resumes if asked to, and describes the
  // run. Returns false if all steps were done and validated before: then nothing is left to do.
  // Collective.
  [[nodiscard]] bool Start(const Boosted& boosted, const optim::LrScheduler& scheduler,
                           const RunDescription& description);

  // This rank's part of the samples of the steps to do (Corpus::train_samples), in an order that
  // depends only on the seed.
  data::Loader& samples() { return *loader_; }
  // The last step that is done; 0: a new run.
  int64_t step() const { return event_.step; }

  // `loss`: this rank's loss of the step. Throws Error on every rank if the mean over the ranks is
  // not finite. Collective. The tensor is not read in a dry run (records/run_plan.h).
  void BeforeStep(double loss);
  void BeforeStep(const Tensor& loss);
  // Logs the step, and saves a checkpoint if it is due. True: a signal has come, leave the loop.
  // Collective.
  [[nodiscard]] bool AfterStep();

  // The loss on the part of the text that is not for training, before the loop or after it.
  // Collective. A run that has validated after its last step is finished for Start.
  void Validate();
  // Notes the peak memory of ranks and process, and the planned one. OUT/plan.json has both for
  // every rank. Collective.
  void ReportMemory();
  // Lets the model continue the prompt of the flags, or these. Call it on every rank: all of them
  // gather sharded parameters; otherwise the first replica writes alone.
  void WriteSample();
  void WriteSamples(const std::vector<std::string>& prompts);
  // Prints lines on rank 0, and adds them to train.log. Not a collective.
  void Note(const std::string& text);

  // 0, or 128 plus the number of the signal that ended the run.
  int exit_code() const;

 private:
  // Writes run.json, for reports.
  void WriteRecord(const RunDescription& description) const;
  void CountTraffic(bool is_last);
  void TellCheckpointNotes();

  const Rank rank_;
  const RunFlags& flags_;
  const RunConfig config_;
  Booster& booster_;
  const Plugin& plugin_;
  std::unique_ptr<Boosted> boosted_;
  const optim::LrScheduler* scheduler_ = nullptr;
  std::unique_ptr<CheckpointKeeper> checkpoints_;
  std::unique_ptr<data::Loader> loader_;
  std::unique_ptr<MetricsLogger> metrics_;  // on rank 0
  std::unique_ptr<PeakShare> share_;        // on rank 0, if there are files, on CPUs
  std::unique_ptr<StepLog> log_;            // on rank 0, with --print-events
  Subscription log_listens_;
  StepEvent event_;
  // On rank 0, after the first step; null before it.
  std::unique_ptr<report::TrafficRecord> first_traffic_;
  int64_t first_step_ = 0;
  std::array<double, 2> stop_ = {};  // StopSignals, summed over the ranks
};

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_TEXT_RUN_H_
