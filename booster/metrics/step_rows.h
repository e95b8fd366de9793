// SPDX-License-Identifier: Apache-2.0

// OpenStepRows: a file with one JSON object per line, whose first field is the step.
//
//   APOGEE_ASSIGN_OR_RETURN(OpenedStepRows rows, OpenStepRows("out/metrics.jsonl", 0));
//   APOGEE_RETURN_IF_ERROR(rows.file->Append("{\"step\":1,\"loss\":5.5}\n"));
#ifndef APOGEE_BOOSTER_METRICS_STEP_ROWS_H_
#define APOGEE_BOOSTER_METRICS_STEP_ROWS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "apogee/booster/metrics/line_file.h"

namespace apogee {

struct OpenedStepRows {
  std::unique_ptr<LineFile> file;
  int64_t last_step = 0;  // of the rows that stay; 0: no rows
};

// Opens the file for more rows. It is empty then, or has the rows up to `resumed_step`. Of several
// rows of a step, which an interrupted program may have left, the last stays. Replaces the file
// atomically, so that the rows to keep are never missing. Errors are those of LineFile.
absl::StatusOr<OpenedStepRows> OpenStepRows(const std::string& path, int64_t resumed_step);

}  // namespace apogee

#endif  // APOGEE_BOOSTER_METRICS_STEP_ROWS_H_
