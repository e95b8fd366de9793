// SPDX-License-Identifier: Apache-2.0

#include "apogee/verify/option_text.h"

#include "apogee/optim/options.h"

namespace apogee::verify {

std::string OptionText(const Json& value) {
  if (value.is_boolean()) return optim::FormatOption(value.get<bool>());
  if (value.is_number_integer()) return optim::FormatOption(value.get<int64_t>());
  if (value.is_number()) return optim::FormatOption(value.get<double>());
  if (value.is_array()) {
    std::string text;
    for (const Json& item : value) {
      if (!text.empty()) text += ',';
      text += OptionText(item);
    }
    return text;
  }
  return value.get<std::string>();
}

}  // namespace apogee::verify
