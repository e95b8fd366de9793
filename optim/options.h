// SPDX-License-Identifier: Apache-2.0

// Options by name: lets command lines, registries and checkpoints set and read the fields of a
// typed options struct.
//
//   struct SgdOptions {
//     double lr = 1e-3, momentum = 0;
//     static std::vector<OptionField<SgdOptions>> Fields() {
//       return {{"lr", &SgdOptions::lr}, {"momentum", &SgdOptions::momentum}};
//     }
//   };
//   SgdOptions options;
//   absl::Status s = SetOptions({{"lr", "0.1"}, {"momentum", "0.9"}}, "optimizer sgd", options);
//   OptionMap text = GetOptions(options);      // every field; reading it back gives the same bits
//
// Text forms: numbers as in C++ ("1e-3"), booleans true/false/1/0, lists with commas ("0.9,0.95").
#ifndef APOGEE_OPTIM_OPTIONS_H_
#define APOGEE_OPTIM_OPTIONS_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/core/text/text.h"

namespace apogee::optim {

using OptionMap = std::map<std::string, std::string>;

// Parses words of the form "key=value". A word without '=' or a key given twice is an error.
absl::StatusOr<OptionMap> ParseOptions(const std::vector<std::string>& words);

// Reads the text form. `what` names the option in the error message.
absl::Status ParseOption(const std::string& what, const std::string& text, double& value);
absl::Status ParseOption(const std::string& what, const std::string& text, bool& value);
absl::Status ParseOption(const std::string& what, const std::string& text, int64_t& value);
absl::Status ParseOption(const std::string& what, const std::string& text, std::string& value);
absl::Status ParseOption(const std::string& what, const std::string& text,
                         std::array<double, 2>& value);
absl::Status ParseOption(const std::string& what, const std::string& text,
                         std::array<double, 3>& value);
absl::Status ParseOption(const std::string& what, const std::string& text,
                         std::vector<int64_t>& value);
// The inverse of ParseOption: reading the text back gives the same bits.
std::string FormatOption(double value);
std::string FormatOption(bool value);
std::string FormatOption(int64_t value);
std::string FormatOption(const std::string& value);
std::string FormatOption(const std::array<double, 2>& value);
std::string FormatOption(const std::array<double, 3>& value);
std::string FormatOption(const std::vector<int64_t>& value);

template <typename Options>
struct OptionField {
  const char* name;
  std::variant<double Options::*, bool Options::*, int64_t Options::*, std::string Options::*,
               std::array<double, 2> Options::*, std::array<double, 3> Options::*,
               std::vector<int64_t> Options::*>
      member;
};

// Sets the named fields. An unknown name or a malformed value is an error and leaves `options`
// unchanged. `what` begins the error message.
template <typename Options>
absl::Status SetOptions(const OptionMap& values, const std::string& what, Options& options) {
  const std::vector<OptionField<Options>> fields = Options::Fields();
  Options result = options;
  for (const auto& [key, text] : values) {
    const OptionField<Options>* found = nullptr;
    std::vector<std::string> names;
    for (const OptionField<Options>& field : fields) {
      names.push_back(field.name);
      if (key == field.name) found = &field;
    }
    if (found == nullptr) return InvalidArgument(what, ": ", UnknownName("option", key, names));
    APOGEE_RETURN_IF_ERROR(std::visit(
        [&](auto member) { return ParseOption(what + ": " + key, text, result.*member); },
        found->member));
  }
  options = std::move(result);
  return absl::OkStatus();
}

template <typename Options>
OptionMap GetOptions(const Options& options) {
  OptionMap values;
  for (const OptionField<Options>& field : Options::Fields()) {
    values[field.name] =
        std::visit([&](auto member) { return FormatOption(options.*member); }, field.member);
  }
  return values;
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_OPTIONS_H_
