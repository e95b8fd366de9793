// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/log.h"

#include <cstdio>

namespace apogee {

void LogLine(const char* level, const std::string& message) {
  // One call per line, so that lines of several ranks do not interleave.
  std::fprintf(stderr, "apogee: %s %s\n", level, message.c_str());
}

}  // namespace apogee
