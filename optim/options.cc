// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/options.h"

#include <charconv>
#include <cmath>

namespace apogee::optim {
namespace {

template <typename T>
absl::Status ParseNumber(const std::string& what, const std::string& text, const char* form,
                         T& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end) return absl::OkStatus();
  return InvalidArgument(what, ": expected ", form, ", got \"", text, "\"");
}

std::vector<std::string> SplitCommas(const std::string& text) {
  std::vector<std::string> parts;
  if (text.empty()) return parts;
  size_t begin = 0;
  while (true) {
    const size_t comma = text.find(',', begin);
    parts.push_back(text.substr(begin, comma - begin));
    if (comma == std::string::npos) return parts;
    begin = comma + 1;
  }
}

template <typename T>
absl::Status ParseList(const std::string& what, const std::string& text, std::vector<T>& value) {
  value.clear();
  for (const std::string& part : SplitCommas(text)) {
    APOGEE_RETURN_IF_ERROR(ParseOption(what, part, value.emplace_back()));
  }
  return absl::OkStatus();
}

template <typename T>
std::string FormatList(const std::vector<T>& value) {
  std::string text;
  for (const T& each : value) {
    if (!text.empty()) text += ',';
    text += FormatOption(each);
  }
  return text;
}

}  // namespace

void OptionProblems::Run(OptionCheck check, const std::string& name, double value) {
  using Result = std::pair<bool, const char*>;
  const auto [ok, expected] = [&]() -> Result {
    switch (check) {
      case OptionCheck::kAny:
        return {true, ""};
      case OptionCheck::kFinite:
        return {std::isfinite(value), "must be finite"};
      case OptionCheck::kAtLeastZero:
        return {value >= 0 && std::isfinite(value), "must be at least 0 and finite"};
      case OptionCheck::kPositive:
        return {value > 0 && std::isfinite(value), "must be above 0 and finite"};
      case OptionCheck::kAboveZero:
        return {value > 0, "must be above 0 (inf: no limit)"};
      case OptionCheck::kDecay:
        return {value >= 0 && value < 1, "must be in [0, 1)"};
      case OptionCheck::kAtLeastOne:
        return {value >= 1, "must be at least 1"};
    }
    return {true, ""};
  }();
  if (!ok) Add(internal::Concat(name, " is ", value, ", ", expected));
}

absl::StatusOr<OptionMap> ParseOptions(const std::vector<std::string>& words) {
  OptionMap options;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      return InvalidArgument("option \"", word, "\": expected key=value, for instance lr=1e-3");
    }
    if (!options.emplace(word.substr(0, equals), word.substr(equals + 1)).second) {
      return InvalidArgument("option \"", word.substr(0, equals), "\" is given twice");
    }
  }
  return options;
}

absl::Status ParseOption(const std::string& what, const std::string& text, double& value) {
  return ParseNumber(what, text, "a number", value);
}
absl::Status ParseOption(const std::string& what, const std::string& text, int64_t& value) {
  return ParseNumber(what, text, "a whole number", value);
}
absl::Status ParseOption(const std::string& what, const std::string& text, int& value) {
  return ParseNumber(what, text, "a whole number", value);
}
absl::Status ParseOption(const std::string& what, const std::string& text, bool& value) {
  if (text != "true" && text != "false" && text != "1" && text != "0") {
    return InvalidArgument(what, ": expected true or false, got \"", text, "\"");
  }
  value = text == "true" || text == "1";
  return absl::OkStatus();
}
absl::Status ParseOption(const std::string&, const std::string& text, std::string& value) {
  value = text;
  return absl::OkStatus();
}
absl::Status ParseOption(const std::string& what, const std::string& text,
                         std::array<double, 2>& value) {
  const std::vector<std::string> parts = SplitCommas(text);
  if (parts.size() != 2) {
    return InvalidArgument(what, ": expected two numbers with a comma, got \"", text, "\"");
  }
  APOGEE_RETURN_IF_ERROR(ParseOption(what, parts[0], value[0]));
  return ParseOption(what, parts[1], value[1]);
}
absl::Status ParseOption(const std::string& what, const std::string& text,
                         std::array<double, 3>& value) {
  const std::vector<std::string> parts = SplitCommas(text);
  if (parts.size() != 3) {
    return InvalidArgument(what, ": expected three numbers with commas, got \"", text, "\"");
  }
  for (size_t i = 0; i < 3; ++i) APOGEE_RETURN_IF_ERROR(ParseOption(what, parts[i], value[i]));
  return absl::OkStatus();
}
absl::Status ParseOption(const std::string& what, const std::string& text,
                         std::vector<int64_t>& value) {
  return ParseList(what, text, value);
}
absl::Status ParseOption(const std::string& what, const std::string& text,
                         std::vector<int>& value) {
  return ParseList(what, text, value);
}
absl::Status ParseOption(const std::string& what, const std::string& text,
                         std::vector<double>& value) {
  return ParseList(what, text, value);
}

std::string FormatOption(double value) {
  char text[40];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  (void)error;  // 40 characters hold any double
  return {text, end};
}
std::string FormatOption(bool value) { return value ? "true" : "false"; }
std::string FormatOption(int64_t value) { return std::to_string(value); }
std::string FormatOption(int value) { return std::to_string(value); }
std::string FormatOption(const std::string& value) { return value; }
std::string FormatOption(const std::array<double, 2>& value) {
  return FormatOption(value[0]) + "," + FormatOption(value[1]);
}
std::string FormatOption(const std::array<double, 3>& value) {
  return internal::Concat(FormatOption(value[0]), ",", FormatOption(value[1]), ",",
                          FormatOption(value[2]));
}
std::string FormatOption(const std::vector<int64_t>& value) { return FormatList(value); }
std::string FormatOption(const std::vector<int>& value) { return FormatList(value); }
std::string FormatOption(const std::vector<double>& value) { return FormatList(value); }

}  // namespace apogee::optim
