// SPDX-License-Identifier: Apache-2.0

// Small text helpers for messages that people read.
//
//   if (!known) Throw("config: ", UnknownName("optimizer", name, {"adam", "adamw", "sgd"}));
//   LogWarning("the model takes ", FormatBytes(bytes), " in ", FormatThousands(count), " tensors");
#ifndef APOGEE_CORE_TEXT_TEXT_H_
#define APOGEE_CORE_TEXT_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "apogee/core/error.h"

namespace apogee {

// The candidate with the smallest edit distance to `name`. "" if none is near, that is, if more
// than half of the name would have to change.
std::string NearestName(const std::string& name, const std::vector<std::string>& candidates);

// For example `unknown optimizer "adamv" (did you mean "adamw"?); known: adam, adamw, sgd`.
std::string UnknownName(const std::string& what, const std::string& name,
                        const std::vector<std::string>& candidates);

// For example "lr is -1, must be at least 0; eps is 0, must be above 0".
std::string JoinTexts(const std::vector<std::string>& texts, const char* separator = "; ");

// Whether the whole text matches a shell pattern: * is any text, ? a character, [abc] one of them.
bool GlobMatches(const std::string& pattern, const std::string& text);

// For example "1.5 GiB", "12.0 MiB", "512 B".
std::string FormatBytes(int64_t bytes);
// "+0.7 %" of 0.007.
std::string FormatChange(double share, int decimals = 1);
// "5.6 %" of 0.056.
std::string FormatPercent(double share, int decimals = 1);
// For example "1,335".
std::string FormatThousands(int64_t value);
// Three digits, such as "1.23 s", "45.6 ms", "789 us", "7.90 h" or "12.0 days".
std::string FormatSeconds(double seconds);

// Adds a line to the problems that one Error lists. `parts`: as of APOGEE_CHECK.
template <typename... Parts>
void AddProblem(std::string& problems, const Parts&... parts) {
  problems += "\n  " + internal::Concat(parts...);
}

// The text as a JSON string with its quotes. If it is not valid UTF-8, each byte above 127 becomes
// a question mark.
std::string JsonQuoted(const std::string& text);

}  // namespace apogee

#endif  // APOGEE_CORE_TEXT_TEXT_H_
