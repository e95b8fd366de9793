// SPDX-License-Identifier: Apache-2.0

#include "apogee/plan/table.h"

#include <algorithm>

namespace apogee::plan {

std::string Aligned(const std::vector<Cells>& rows) {
  std::vector<size_t> widths;
  for (const Cells& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const Cells& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      text += (c == 0 ? "" : "  ") + (c == 0 ? row[c] + padding : padding + row[c]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

}  // namespace apogee::plan
