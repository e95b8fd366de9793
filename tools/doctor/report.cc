// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/doctor/report.h"

#include <sstream>

namespace apogee::tools::doctor {

void Report::Add(const std::string& name, const std::string& value) {
  constexpr size_t kColumn = 22;
  std::string line = "  " + name;
  line.resize(std::max(line.size() + 1, kColumn), ' ');
  text_ += line + redactor_.Clean(value) + "\n";
}

void Report::AddLines(const std::string& lines) {
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) text_ += "    | " + redactor_.Clean(line) + "\n";
}

std::string Report::Text() const {
  std::string text = text_;
  for (const std::string& advice : advice_) text += "! " + advice + "\n";
  return text;
}

}  // namespace apogee::tools::doctor
