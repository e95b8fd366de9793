// SPDX-License-Identifier: Apache-2.0

// Makes text from a file or a peer safe to show on a terminal: control characters, which a terminal
// obeys, become question marks. UTF-8 stays.
//
//   std::fprintf(stderr, "%s\n", Printable(name).c_str());
#ifndef APOGEE_CORE_TEXT_PRINTABLE_H_
#define APOGEE_CORE_TEXT_PRINTABLE_H_

#include <string>

namespace apogee {

// For one line: line ends are replaced too.
std::string Printable(const std::string& text);
// For text of several lines: line ends and tabs stay.
std::string PrintableLines(const std::string& text);

}  // namespace apogee

#endif  // APOGEE_CORE_TEXT_PRINTABLE_H_
