// SPDX-License-Identifier: Apache-2.0

// MetricsLogger: logs a training run to the console and to files, with one call per event.
//
//   APOGEE_ASSIGN_OR_RETURN(auto metrics, MetricsLogger::Create({.out = "out", .total_steps = 600,
//                                                                .ledger = &context->ledger()}));
//   APOGEE_RETURN_IF_ERROR(metrics->Step({.step = 1, .loss = 5.54, .lr = 1e-3, .tokens = 2048}));
//   APOGEE_RETURN_IF_ERROR(metrics->Validation({.step = 600, .loss = 1.71}));
//
// The directory `out` gets these files, in whole lines only, each written when the call returns:
//
//   metrics.jsonl           one object per step: step, loss, lr, grad_norm, tokens_per_s, seconds,
//                           share_of_peak if it is known, and memory: peak bytes of each category,
//                           of their total, and of the bytes that the allocator reserved
//   validation.jsonl        one object per validation: step, loss, tokens
//   train.log               the console's plain lines
//   events.out.tfevents.*   the same numbers for TensorBoard
//
// A new run overwrites the first three. A run that resumes (MetricsOptions::resumed_step) keeps the
// rows up to that step, drops the rows of the steps it will repeat, and continues train.log. Each
// step has one row: a second validation of a step goes only to the console and train.log. Numbers
// have 9 significant digits, enough to tell any two f32 apart.
//
// Errors are a Status that names the file. A link, or anything else that is not a regular file, is
// an error and never written. A loss that is not finite is an error, too: it names the step, and
// nothing is written for that step. Make a logger on rank 0 only.
#ifndef APOGEE_BOOSTER_METRICS_METRICS_H_
#define APOGEE_BOOSTER_METRICS_METRICS_H_

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>

#include "apogee/booster/metrics/line_file.h"
#include "apogee/core/memory.h"

namespace apogee {

struct Progress;          // progress.h
class ProgressConsole;    // progress.h
class TensorBoardWriter;  // tensorboard.h

struct MetricsOptions {
  // The directory; made if it is missing. Empty: console only.
  std::string out = {};
  int64_t total_steps = 0;
  // Steps that an earlier run, which wrote to the same `out`, has done.
  int64_t resumed_step = 0;
  // Write a lasting line on the console and in train.log every `log_every` steps, and for the first
  // and last step.
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
  // NaN: not computed; null in the file.
  double grad_norm = std::numeric_limits<double>::quiet_NaN();
  // Tokens of this step. The step's time is counted since the last event, or since Create.
  int64_t tokens = 0;
  // Operations of this rank in the step, and its peak per second: for the share of the peak. 0: not
  // known.
  double flops = 0, peak_flops = 0;
};

struct ValidationEvent {
  int64_t step = 0;
  double loss = 0;  // per token
  int64_t tokens = 0;
  // The text that the tokens stand for: gives the loss per byte, which models with different
  // tokenizers can be compared by. 0: unknown.
  int64_t bytes = 0;
};

class MetricsLogger {
 public:
  static absl::StatusOr<std::unique_ptr<MetricsLogger>> Create(const MetricsOptions& options);

  ~MetricsLogger();

  absl::Status Step(const StepEvent& event);
  absl::Status Validation(const ValidationEvent& event);
  // Whether validation.jsonl has a row for this step, from this run or from the one it resumes. A
  // program that is run again after its end then need not validate.
  bool has_validation(int64_t step) const { return step > 0 && last_validated_step_ >= step; }
  // Writes one or more lines for people: the model, the data, a sample. Control characters, which
  // text from files may have, become question marks.
  absl::Status Note(const std::string& text);

 private:
  explicit MetricsLogger(const MetricsOptions& options);
  absl::Status OpenFiles();
  // Seconds since the last event.
  double TakeSeconds();
  Progress Observe(const StepEvent& event, double seconds);

  MetricsOptions options_;
  std::unique_ptr<ProgressConsole> console_;
  std::unique_ptr<LineFile> steps_, validations_, log_;
  std::unique_ptr<TensorBoardWriter> board_;
  std::chrono::steady_clock::time_point last_event_;
  int64_t last_validated_step_ = 0;
  double mean_step_s_ = 0;  // over the last steps
  double mean_tokens_ = 0;
  int64_t num_steps_ = 0;
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_METRICS_METRICS_H_
