// SPDX-License-Identifier: Apache-2.0

// Small text helpers for messages that people read.
#ifndef APOGEE_CORE_TEXT_H_
#define APOGEE_CORE_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace apogee {

// The candidate with the smallest edit distance to `name`, or "" when none is near (more than half
// of the name would have to change).
std::string NearestName(const std::string& name, const std::vector<std::string>& candidates);

// `unknown optimizer "adamv" (did you mean "adamw"?); known: adam, adamw, sgd`.
std::string UnknownName(const std::string& what, const std::string& name,
                        const std::vector<std::string>& candidates);

// "1.5 GiB", "12.0 MiB", "512 B".
std::string FormatBytes(int64_t bytes);
// "1,335".
std::string FormatThousands(int64_t value);

// As a string of JSON, with its quotes. What is no UTF-8 loses its bytes above 127.
std::string JsonQuoted(const std::string& text);

}  // namespace apogee

#endif  // APOGEE_CORE_TEXT_H_
