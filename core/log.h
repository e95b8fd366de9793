// SPDX-License-Identifier: Apache-2.0

// Log: one human-readable line on stderr per call, `apogee: <level> <message>`. Metrics go through
// booster/metrics/metrics.h, never through here.
//
//   LogWarning("dataset: ", count, " samples are empty");    // apogee: warning: dataset: 3 ...
#ifndef APOGEE_CORE_LOG_H_
#define APOGEE_CORE_LOG_H_

#include <string>

#include "apogee/core/error.h"

namespace apogee {

void LogLine(const char* level, const std::string& message);

template <typename... Parts>
void LogWarning(const Parts&... parts) {
  LogLine("warning:", internal::Concat(parts...));
}

}  // namespace apogee

#endif  // APOGEE_CORE_LOG_H_
