// SPDX-License-Identifier: Apache-2.0

#include "apogee/examples/common/program.h"

#include <cstdio>
#include <exception>

#include "apogee/core/process/standard_output.h"
#include "apogee/core/text/printable.h"

using namespace apogee;

int RunProgram(const std::string& name, const std::function<int()>& body) {
  ReportFileSizeLimit();
  const auto fail = [&name](const std::string& message) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), PrintableLines(message).c_str());
    return 1;
  };
  int exit_code = 0;
  try {
    exit_code = body();
  } catch (const std::exception& error) {
    exit_code = fail(error.what());
  }
  const absl::Status printed = FlushStandardOutput();
  if (printed.ok()) return exit_code;
  fail(Message(printed));
  return exit_code == 0 ? 1 : exit_code;
}
