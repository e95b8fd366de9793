// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/attributes.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>

#include "apogee/core/text/printable.h"

namespace apogee {

void Attributes::Set(const std::string& name, const std::vector<double>& values) {
  std::string text;
  for (const double value : values) {
    char digits[40];
    std::snprintf(digits, sizeof(digits), "%a", value);
    text += (text.empty() ? "" : " ") + std::string(digits);
  }
  values_[name] = text;
}

absl::StatusOr<std::string> Attributes::Get(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return DataLoss(path_, ": there is no attribute \"", name, "\"");
  return found->second;
}

absl::StatusOr<int64_t> Attributes::GetInt(const std::string& name) const {
  APOGEE_ASSIGN_OR_RETURN(const std::string text, Get(name));
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [reached, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || reached != end || text.empty()) {
    return DataLoss(path_, ": attribute \"", name, "\" is \"", Printable(text),
                    "\", not a whole number");
  }
  return value;
}

absl::StatusOr<std::vector<double>> Attributes::GetDoubles(const std::string& name) const {
  APOGEE_ASSIGN_OR_RETURN(const std::string text, Get(name));
  std::vector<double> values;
  const char* at = text.c_str();
  while (*at != '\0') {
    char* reached = nullptr;
    values.push_back(std::strtod(at, &reached));
    if (reached == at || (*reached != '\0' && *reached != ' ')) {
      return DataLoss(path_, ": attribute \"", name, "\" is \"", Printable(text),
                      "\", not numbers");
    }
    at = *reached == ' ' ? reached + 1 : reached;
  }
  return values;
}

absl::StatusOr<double> Attributes::GetDouble(const std::string& name) const {
  APOGEE_ASSIGN_OR_RETURN(const std::vector<double> values, GetDoubles(name));
  if (values.size() != 1) {
    return DataLoss(path_, ": attribute \"", name, "\" has ", values.size(), " numbers, not one");
  }
  return values[0];
}

std::map<std::string, std::string> Attributes::Below(const std::string& prefix) const {
  std::map<std::string, std::string> below;
  for (auto it = values_.lower_bound(prefix); it != values_.end(); ++it) {
    if (!it->first.starts_with(prefix)) break;
    below[it->first.substr(prefix.size())] = it->second;
  }
  return below;
}

}  // namespace apogee
