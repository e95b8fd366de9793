// SPDX-License-Identifier: Apache-2.0

// Progress of a training run as lines for people.
//
//   ProgressConsole console(stdout);              // live lines on a terminal, plain ones in a pipe
//   console.Live(FormatProgress(progress));       // replaces the last live line; not in a pipe
//   console.Line("validation loss 1.71");         // stays
//
// FormatProgress makes one line, here broken in two:
//
//   step   120/600  loss 2.3451  lr 9.80e-04  norm 0.81  18,234 tok/s  eta 0:35  peak 123.4 MiB
//   (param 3.1, grad 3.1, optim 6.2, act 98.3, work 12.7)
//
// "tok/s" averages over the last steps. "eta" is minutes and seconds. "peak" is the highest total
// of the ledger's categories at one moment; in parentheses is each category's own peak in MiB.
#ifndef APOGEE_BOOSTER_METRICS_PROGRESS_H_
#define APOGEE_BOOSTER_METRICS_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "apogee/core/memory.h"

namespace apogee {

struct Progress {
  int64_t step = 0;
  int64_t total_steps = 0;
  double loss = 0;
  double lr = 0;
  // NaN: left out.
  double grad_norm = 0;
  double tokens_per_s = 0;
  // Negative: not known yet.
  double eta_s = -1;
  // nullptr: no memory figures.
  const MemoryLedger* ledger = nullptr;
};

std::string FormatProgress(const Progress& progress);
// "0:35", "12:04", "1:02:03".
std::string FormatDuration(double seconds);
// "123.4 MiB (param 3.1, grad 3.1, …)": the peaks.
std::string FormatMemory(const MemoryLedger& ledger);

class ProgressConsole {
 public:
  // nullptr: silent.
  explicit ProgressConsole(std::FILE* stream);
  // Leaves the last live line on the screen.
  ~ProgressConsole();
  ProgressConsole(const ProgressConsole&) = delete;
  ProgressConsole& operator=(const ProgressConsole&) = delete;

  // Redraws at most ten times a second, and cuts the text to the terminal's width.
  void Live(const std::string& text);
  void Line(const std::string& text);

 private:
  std::FILE* stream_;
  bool is_terminal_;
  bool has_live_line_ = false;
  std::chrono::steady_clock::time_point last_draw_{};
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_METRICS_PROGRESS_H_
