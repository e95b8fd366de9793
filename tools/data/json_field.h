// SPDX-License-Identifier: Apache-2.0

// The text of one line of JSON Lines.
//
//   APOGEE_ASSIGN_OR_RETURN(std::string text, JsonField(R"({"text": "a verse"})", "text"));
#ifndef APOGEE_TOOLS_DATA_JSON_FIELD_H_
#define APOGEE_TOOLS_DATA_JSON_FIELD_H_

#include <string>

#include "apogee/core/status.h"

namespace apogee::tools {

// The string with this name in the object that the line is; other fields may be anything.
// InvalidArgument says what is wrong, without file and line.
absl::StatusOr<std::string> JsonField(const std::string& line, const std::string& field);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_DATA_JSON_FIELD_H_
