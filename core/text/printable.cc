// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/text/printable.h"

namespace apogee {
namespace {

std::string Replaced(const std::string& text, bool keep_layout) {
  std::string printable = text;
  for (size_t i = 0; i < printable.size(); ++i) {
    const auto byte = static_cast<unsigned char>(printable[i]);
    const bool stays = keep_layout && (byte == '\n' || byte == '\t');
    if ((byte < 0x20 && !stays) || byte == 0x7f) printable[i] = '?';
    // U+0080 to U+009F are control characters too: some terminals obey them like escapes.
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (byte == 0xc2 && next >= 0x80 && next < 0xa0) printable[i] = printable[i + 1] = '?';
  }
  return printable;
}

}  // namespace

std::string Printable(const std::string& text) { return Replaced(text, /*keep_layout=*/false); }

std::string PrintableLines(const std::string& text) { return Replaced(text, /*keep_layout=*/true); }

}  // namespace apogee
