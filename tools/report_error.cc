// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/report_error.h"

#include <iostream>

#include "apogee/core/text/printable.h"

namespace apogee::tools {

int ReportError(const char* command, const absl::Status& status) {
  std::cerr << "apogee " << command << ": " << PrintableLines(Message(status)) << "\n";
  return absl::IsDataLoss(status) ? 1 : 2;
}

}  // namespace apogee::tools
