// SPDX-License-Identifier: Apache-2.0

// Errors of a command that reads folders of models or checkpoints.
//
//   if (!status.ok()) return ReportError("inspect", status);
#ifndef APOGEE_TOOLS_REPORT_ERROR_H_
#define APOGEE_TOOLS_REPORT_ERROR_H_

#include "apogee/core/status.h"

namespace apogee::tools {

// Prints "apogee COMMAND: ..." on stderr. Returns the exit code: 1 for damaged files, else 2.
int ReportError(const char* command, const absl::Status& status);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_REPORT_ERROR_H_
