// SPDX-License-Identifier: Apache-2.0

// Text of a file or a peer, as a terminal may show it: control characters, which a terminal obeys,
// become question marks. UTF-8 stays.
//
//   std::fprintf(stderr, "%s\n", Printable(name).c_str());
#ifndef APOGEE_CORE_PRINTABLE_H_
#define APOGEE_CORE_PRINTABLE_H_

#include <string>

namespace apogee {

// On one line: line ends are control characters.
std::string Printable(const std::string& text);
// The same, but line ends and tabs stay: for a message that is a list, and for a text.
std::string PrintableLines(const std::string& text);

}  // namespace apogee

#endif  // APOGEE_CORE_PRINTABLE_H_
