// SPDX-License-Identifier: Apache-2.0

// What a program checks about its own output: a write that fails is an error, not a silent loss.
//
//   int main() {
//     ReportFileSizeLimit();
//     ...
//     const absl::Status printed = FlushStandardOutput();
//     if (!printed.ok()) { std::fprintf(stderr, "...: %s\n", Message(printed).c_str()); return 1; }
//   }
#ifndef APOGEE_CORE_STANDARD_OUTPUT_H_
#define APOGEE_CORE_STANDARD_OUTPUT_H_

#include "apogee/core/status.h"

namespace apogee {

// From here on a write beyond the limit of `ulimit -f` fails with "File too large", which the
// writer reports. By default the signal SIGXFSZ ends the process without a word. Processes that
// this one starts inherit it.
void ReportFileSizeLimit();

// Writes out what stdout and std::cout still hold. DataLoss, with the remedy, where that or a write
// before failed: a full disk, a closed descriptor.
absl::Status FlushStandardOutput();

}  // namespace apogee

#endif  // APOGEE_CORE_STANDARD_OUTPUT_H_
