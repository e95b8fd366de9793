#include "apogee/core/standard_output.h"

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
  const int error = errno;
  if (flushed && std::cout.good() && std::ferror(stdout) == 0) return absl::OkStatus();
  return DataLoss("cannot write to the standard output: ",
                  error != 0 ? std::strerror(error) : "an earlier write failed",
                  "; part of what was printed is lost: give it a place with room, or /dev/null");
}

}  // namespace apogee
