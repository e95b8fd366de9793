// SPDX-License-Identifier: Apache-2.0

// Checks on a program's own output: a failed write is an error instead of a silent loss.
//
//   int main() {
//     ReportFileSizeLimit();
//     ...
//     const absl::Status printed = FlushStandardOutput();
//     if (!printed.ok()) { std::fprintf(stderr, "...: %s\n", Message(printed).c_str()); return 1; }
//   }
#ifndef APOGEE_CORE_PROCESS_STANDARD_OUTPUT_H_
#define APOGEE_CORE_PROCESS_STANDARD_OUTPUT_H_

#include "apogee/core/status.h"

namespace apogee {

// From here on a write beyond the limit of `ulimit -f` fails with "File too large", which the
// writer reports. Without this call the signal SIGXFSZ ends the process without a word. Processes
// started from this one inherit the setting.
void ReportFileSizeLimit();

// Writes out the buffers of stdout and std::cout. Returns DataLoss, with the remedy, if this or an
// earlier write failed: a full disk, a closed descriptor.
absl::Status FlushStandardOutput();

}  // namespace apogee

#endif  // APOGEE_CORE_PROCESS_STANDARD_OUTPUT_H_
