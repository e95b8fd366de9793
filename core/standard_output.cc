// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/standard_output.h"

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
  // Streams forget the reason of an earlier failure; most last.
  if (error == 0 && write(STDOUT_FILENO, "\n", 1) < 0) error = errno;
  return DataLoss("cannot write to the standard output: ",
                  error != 0 ? std::strerror(error) : "an earlier write failed",
                  "; part of what was printed is lost: give it a place with room, or /dev/null");
}

}  // namespace apogee
