// SPDX-License-Identifier: Apache-2.0

// WriteReport: one HTML page about one or several runs, from their output folders.
//
//   APOGEE_RETURN_IF_ERROR(report::WriteReport({"out", "other"}, "report.html"));
//
// The page is one file. It loads nothing, works from disk, and follows the reader's setting, dark
// or light. It has charts of all runs together (loss, learning rate, gradient norm, tokens per
// second, share of peak), memory by category (planned against measured), pictures of the layout and
// the pipeline, traffic by collective, skipped steps, checkpoints and notes. It names the parts
// that a run did not record.
//
// Errors: those of ReadRun (run_data.h); InvalidArgument for no run, for one that is given twice,
// and for a file that cannot be written. The file appears whole or not at all.
#ifndef APOGEE_REPORT_REPORT_H_
#define APOGEE_REPORT_REPORT_H_

#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::report {

// Its name in the output folder of a run.
inline constexpr const char* kReportName = "report.html";

// The page's text.
absl::StatusOr<std::string> MakeReport(const std::vector<std::string>& folders);

// `path` must end in ".html", so that no file of a run is overwritten by mistake.
absl::Status WriteReport(const std::vector<std::string>& folders, const std::string& path);

}  // namespace apogee::report

#endif  // APOGEE_REPORT_REPORT_H_
