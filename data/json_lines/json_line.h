// SPDX-License-Identifier: Apache-2.0

// The strings of one line of JSON Lines. The line may be hostile (core/text/json_reader.h).
//
//   APOGEE_ASSIGN_OR_RETURN(JsonLine line, ReadJsonLine(R"({"text": "a verse"})", {"text"}));
//   if (line.values[0].has_value()) ...                         // "a verse"
#ifndef APOGEE_DATA_JSON_LINES_JSON_LINE_H_
#define APOGEE_DATA_JSON_LINES_JSON_LINE_H_

#include <optional>
#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::data {

struct JsonLine {
  // One for each name that was asked for; empty: the object has no such field.
  std::vector<std::optional<std::string>> values;
  // The names of other fields, for messages: shortened, and the first few.
  std::vector<std::string> others = {};
};

// Reads the fields `names` of the object that the line is; other fields may be anything.
// InvalidArgument says what is wrong, without file and line: no object, a field that is no string
// or is there twice, no JSON, no UTF-8.
absl::StatusOr<JsonLine> ReadJsonLine(const std::string& line,
                                      const std::vector<std::string>& names);

}  // namespace apogee::data

#endif  // APOGEE_DATA_JSON_LINES_JSON_LINE_H_
