// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/process/standard_output.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>

namespace apogee {

void ReportFileSizeLimit() { std::signal(SIGXFSZ, SIG_IGN); }

absl::Status FlushStandardOutput() {
  errno = 0;
  std::cout.flush();
  const bool flushed = std::fflush(stdout) == 0;
  int error = errno;
  if (flushed && std::cout.good() && std::ferror(stdout) == 0) return absl::OkStatus();
  // The streams may have forgotten the reason of an earlier failure; a write finds most again.
  if (error == 0 && write(STDOUT_FILENO, "\n", 1) < 0) error = errno;
  return DataLoss(
      "cannot write to the standard output: ",
      error != 0 ? std::strerror(error) : "an earlier write failed",
      "; part of the output is lost: redirect it to a disk with free space, or to /dev/null");
}

}  // namespace apogee
