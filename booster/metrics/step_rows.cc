// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/metrics/step_rows.h"

#include <cstdio>
#include <limits>
#include <map>
#include <sstream>

#include "apogee/checkpoint/format/open_tensor_file.h"

namespace apogee {
namespace {

// Without an incomplete last line.
absl::StatusOr<std::map<int64_t, std::string>> RowsUpTo(const std::string& path, int64_t step) {
  APOGEE_ASSIGN_OR_RETURN(const std::string text,
                          checkpoint::ReadTextFile(*checkpoint::RealFileSystem(), path,
                                                   std::numeric_limits<int64_t>::max()));
  std::map<int64_t, std::string> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line) && !lines.eof();) {
    long long row = 0;
    if (std::sscanf(line.c_str(), "{\"step\":%lld,", &row) == 1 && row <= step) rows[row] = line;
  }
  return rows;
}

}  // namespace

absl::StatusOr<OpenedStepRows> OpenStepRows(const std::string& path, int64_t resumed_step) {
  OpenedStepRows opened;
  if (resumed_step == 0) {
    APOGEE_ASSIGN_OR_RETURN(opened.file, LineFile::Create(path));
    return opened;
  }
  APOGEE_RETURN_IF_ERROR(LineFile::Continue(path).status());  // the error for links and the like
  APOGEE_ASSIGN_OR_RETURN(const auto rows, RowsUpTo(path, resumed_step));
  std::string kept;
  for (const auto& [step, line] : rows) kept += line + "\n";
  if (!rows.empty()) opened.last_step = rows.rbegin()->first;
  APOGEE_RETURN_IF_ERROR(LineFile::Replace(path, kept));
  APOGEE_ASSIGN_OR_RETURN(opened.file, LineFile::Continue(path));
  return opened;
}

}  // namespace apogee
