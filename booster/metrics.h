// SPDX-License-Identifier: Apache-2.0

// MetricsLogger: one call per event of a training run; the console and the files follow.
//
//   APOGEE_ASSIGN_OR_RETURN(auto metrics, MetricsLogger::Create({.out = "out", .total_steps = 600,
//                                                                .ledger = &context->ledger()}));
//   APOGEE_RETURN_IF_ERROR(metrics->Step({.step = 1, .loss = 5.54, .lr = 1e-3, .tokens = 2048}));
//   APOGEE_RETURN_IF_ERROR(metrics->Validation({.step = 600, .loss = 1.71}));
//
// In the directory `out`, whole lines only, each on disk when the call returns:
//   metrics.jsonl      one object per step: step, loss, lr, grad_norm, tokens_per_s, seconds, and
//   memory:
//                      peak bytes of each category, of their total, and of what the allocator
//                      reserved
//   validation.jsonl   one object per validation: step, loss, tokens
//   train.log          the console's plain lines
//   events.out.tfevents.*   the same numbers for TensorBoard
// A run overwrites the first three; one that resumes (MetricsOptions::resumed_step) keeps the rows
// up to there, drops those of steps that it is about to do again, and goes on with train.log. A
// step has one row: a validation of a step that has one already is told and not written again.
// Numbers have 9 significant digits, enough to tell any two f32 apart.
//
// Errors: a Status that names the file (also one that is a link or no regular file: none is written
// through), or the step whose loss is not finite (nothing is written
// for it). Rank 0 calls it; other ranks have no logger.
#ifndef APOGEE_BOOSTER_METRICS_H_
#define APOGEE_BOOSTER_METRICS_H_

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>

#include "apogee/booster/line_file.h"
#include "apogee/booster/progress.h"
#include "apogee/booster/tensorboard.h"

namespace apogee {

struct MetricsOptions {
  // Made if it is missing. Empty: console only.
  std::string out = {};
  int64_t total_steps = 0;
  // Steps that are done, by a run that wrote to `out` before.
  int64_t resumed_step = 0;
  // A lasting line on the console and in train.log every so many steps, and for the first and last.
  int64_t log_every = 10;
  // nullptr: nothing on the console.
  std::FILE* console = stdout;
  // Must outlive the logger. nullptr: no memory figures.
  const MemoryLedger* ledger = nullptr;
};

struct StepEvent {
  int64_t step = 0;  // from 1
  double loss = 0;   // mean over the step's tokens
  double lr = 0;
  // NaN when nobody computed it: null in the file.
  double grad_norm = std::numeric_limits<double>::quiet_NaN();
  // Tokens of this step. Its time is that since the last event, or since Create.
  int64_t tokens = 0;
};

struct ValidationEvent {
  int64_t step = 0;
  double loss = 0;
  int64_t tokens = 0;
};

class MetricsLogger {
 public:
  static absl::StatusOr<std::unique_ptr<MetricsLogger>> Create(const MetricsOptions& options);

  absl::Status Step(const StepEvent& event);
  absl::Status Validation(const ValidationEvent& event);
  // Whether validation.jsonl has a row of that step, of this run or the one that it resumes: a
  // program that is run again after its end has nothing to validate.
  bool has_validation(int64_t step) const { return step > 0 && last_validated_step_ >= step; }
  // A line, or several, for people: the model, the data, a sample. Control characters, which text
  // of files may have, become question marks.
  absl::Status Note(const std::string& text);

 private:
  explicit MetricsLogger(const MetricsOptions& options);
  absl::Status OpenFiles();
  // Seconds since the last event.
  double TakeSeconds();
  Progress Observe(const StepEvent& event, double seconds);

  MetricsOptions options_;
  ProgressConsole console_;
  std::unique_ptr<LineFile> steps_, validations_, log_;
  std::unique_ptr<TensorBoardWriter> board_;
  std::chrono::steady_clock::time_point last_event_;
  int64_t last_validated_step_ = 0;
  double mean_step_s_ = 0;  // over the last steps
  double mean_tokens_ = 0;
  int64_t num_steps_ = 0;
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_METRICS_H_
