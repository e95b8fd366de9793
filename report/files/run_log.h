// SPDX-License-Identifier: Apache-2.0

// RunLog: what train.log tells besides the steps' numbers, which metrics.jsonl has.
//
//   const RunLog log = ReadRunLog(text);
//   log.skipped[0].step;                   // of a step that changed nothing
#ifndef APOGEE_REPORT_FILES_RUN_LOG_H_
#define APOGEE_REPORT_FILES_RUN_LOG_H_

#include <cstdint>
#include <string>
#include <vector>

namespace apogee::report {

struct RunLog {
  struct Skipped {
    int64_t step = 0;
    std::string why;
  };
  // Steps whose gradients were not finite.
  std::vector<Skipped> skipped;
  // Steps of which a checkpoint was saved. It may have been removed since.
  std::vector<int64_t> saved;
  // All other lines for people, in order: the text, the model, memory, samples.
  std::vector<std::string> notes;
  // The note that describes the model and the ranks, without "model: "; "" if there is none.
  std::string model;
};

// Reads any text; lines that it does not know are notes.
RunLog ReadRunLog(const std::string& text);

}  // namespace apogee::report

#endif  // APOGEE_REPORT_FILES_RUN_LOG_H_
