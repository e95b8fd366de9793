// SPDX-License-Identifier: Apache-2.0

// Options by name: lets command lines, registries and checkpoints set and read the fields of a
// typed options struct.
//
//   struct SgdOptions {
//     double lr = 1e-3, momentum = 0;
//     static std::vector<OptionField<SgdOptions>> Fields() {
//       return {{"lr", &SgdOptions::lr, OptionCheck::kAtLeastZero, "learning rate"},
//               {"momentum", &SgdOptions::momentum, OptionCheck::kAtLeastZero, "0: none"}};
//     }
//   };
//   std::vector<std::string> problems = ProblemsOf(options);   // every check that fails
//   SgdOptions options;
//   absl::Status s = SetOptions({{"lr", "0.1"}, {"momentum", "0.9"}}, "optimizer sgd", options);
//   OptionMap text = GetOptions(options);      // every field; reading it back gives the same bits
//
// Text forms: numbers as in C++ ("1e-3"), booleans true/false/1/0, lists with commas ("0.9,0.95"),
// enumerations by name.
#ifndef APOGEE_OPTIM_OPTIONS_H_
#define APOGEE_OPTIM_OPTIONS_H_

#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/core/text/text.h"

namespace apogee::optim {

using OptionMap = std::map<std::string, std::string>;

// The valid values of one field.
enum class OptionCheck {
  kAny,
  kFinite,
  kAtLeastZero,  // and finite
  kPositive,     // above 0 and finite
  kAboveZero,    // may be infinite
  kDecay,        // the decay rate of a moving average, in [0, 1)
  kAtLeastOne,
};

// Collects the invalid values of an options struct, so that one Error lists all. A struct whose
// fields depend on each other has a function Check in addition to Fields:
//   void SgdOptions::Check(OptionProblems& problems) const {
//     if (nesterov && !(momentum > 0)) problems.Add("nesterov needs momentum above 0");
//   }
class OptionProblems {
 public:
  void Add(const std::string& problem) { problems_.push_back(problem); }
  // Adds a problem if `value` fails the check.
  void Run(OptionCheck check, const std::string& name, double value);
  // The same for a field: a number, or each element of an array. Text has no checks.
  template <typename T>
  void RunField(OptionCheck check, const std::string& name, const T& field) {
    if constexpr (std::is_arithmetic_v<T>) {
      Run(check, name, static_cast<double>(field));
    } else if constexpr (!std::is_same_v<T, std::string>) {
      for (size_t i = 0; i < field.size(); ++i) {
        Run(check, name + '[' + std::to_string(i) + ']', static_cast<double>(field[i]));
      }
    }
  }
  const std::vector<std::string>& list() const { return problems_; }

 private:
  std::vector<std::string> problems_;
};

// Parses words of the form "key=value". A word without '=' or a key given twice is an error.
absl::StatusOr<OptionMap> ParseOptions(const std::vector<std::string>& words);

// Reads the text form. `what` names the option in the error message.
absl::Status ParseOption(const std::string& what, const std::string& text, double& value);
absl::Status ParseOption(const std::string& what, const std::string& text, bool& value);
absl::Status ParseOption(const std::string& what, const std::string& text, int64_t& value);
absl::Status ParseOption(const std::string& what, const std::string& text, int& value);
absl::Status ParseOption(const std::string& what, const std::string& text, std::string& value);
absl::Status ParseOption(const std::string& what, const std::string& text,
                         std::array<double, 2>& value);
absl::Status ParseOption(const std::string& what, const std::string& text,
                         std::array<double, 3>& value);
absl::Status ParseOption(const std::string& what, const std::string& text,
                         std::vector<int64_t>& value);
absl::Status ParseOption(const std::string& what, const std::string& text, std::vector<int>& value);
absl::Status ParseOption(const std::string& what, const std::string& text,
                         std::vector<double>& value);
// The inverse of ParseOption: reading the text back gives the same bits.
std::string FormatOption(double value);
std::string FormatOption(bool value);
std::string FormatOption(int64_t value);
std::string FormatOption(int value);
std::string FormatOption(const std::string& value);
std::string FormatOption(const std::array<double, 2>& value);
std::string FormatOption(const std::array<double, 3>& value);
std::string FormatOption(const std::vector<int64_t>& value);
std::string FormatOption(const std::vector<int>& value);
std::string FormatOption(const std::vector<double>& value);

// A field with a text form of its own.
template <typename Options>
struct TextField {
  std::function<absl::Status(const std::string& what, const std::string& text, Options& options)>
      parse;
  std::function<std::string(const Options& options)> format;
};

template <typename Options>
struct OptionField {
  const char* name;
  std::variant<double Options::*, bool Options::*, int64_t Options::*, int Options::*,
               std::string Options::*, std::array<double, 2> Options::*,
               std::array<double, 3> Options::*, std::vector<int64_t> Options::*,
               std::vector<int> Options::*, std::vector<double> Options::*, TextField<Options>>
      member;
  OptionCheck check = OptionCheck::kAny;  // of numbers and arrays of numbers
  const char* help = "";                  // for people who read a list of options

  absl::Status Parse(const std::string& what, const std::string& text, Options& options) const {
    return std::visit(
        [&]<typename Member>(const Member& each) {
          if constexpr (std::is_member_object_pointer_v<Member>) {
            return ParseOption(what, text, options.*each);
          } else {
            return each.parse(what, text, options);
          }
        },
        member);
  }
  std::string Format(const Options& options) const {
    return std::visit(
        [&]<typename Member>(const Member& each) {
          if constexpr (std::is_member_object_pointer_v<Member>) {
            return FormatOption(options.*each);
          } else {
            return each.format(options);
          }
        },
        member);
  }
};

// A field that is an enumeration. `parse` reads a text (absl::StatusOr<Enum>), Name(value) is it.
template <typename Options, typename Enum, typename Parse>
TextField<Options> EnumField(Enum Options::*member, Parse parse) {
  return {.parse =
              [=](const std::string& what, const std::string& text, Options& options) {
                const absl::StatusOr<Enum> value = parse(text);
                if (!value.ok()) return InvalidArgument(what, ": ", Message(value.status()));
                options.*member = *value;
                return absl::OkStatus();
              },
          .format = [=](const Options& options) -> std::string { return Name(options.*member); }};
}
// The same for an optional one; "" is no value.
template <typename Options, typename Enum, typename Parse>
TextField<Options> EnumField(std::optional<Enum> Options::*member, Parse parse) {
  return {.parse =
              [=](const std::string& what, const std::string& text, Options& options) {
                options.*member = std::nullopt;
                if (text.empty()) return absl::OkStatus();
                const absl::StatusOr<Enum> value = parse(text);
                if (!value.ok()) return InvalidArgument(what, ": ", Message(value.status()));
                options.*member = *value;
                return absl::OkStatus();
              },
          .format = [=](const Options& options) -> std::string {
            return options.*member ? Name(*(options.*member)) : "";
          }};
}
// All fields of several lists, in their order.
template <typename Options>
std::vector<OptionField<Options>> JoinFields(
    std::initializer_list<std::vector<OptionField<Options>>> lists) {
  std::vector<OptionField<Options>> fields;
  for (const auto& list : lists) fields.insert(fields.end(), list.begin(), list.end());
  return fields;
}
// The fields of a struct inside of Options, as fields of Options.
template <typename Options, typename Inner>
std::vector<OptionField<Options>> InnerFields(Inner Options::*inner) {
  std::vector<OptionField<Options>> fields;
  for (const OptionField<Inner>& field : Inner::Fields()) {
    fields.push_back(
        {field.name,
         TextField<Options>{
             .parse = [=](const std::string& what, const std::string& text,
                          Options& options) { return field.Parse(what, text, options.*inner); },
             .format = [=](const Options& options) { return field.Format(options.*inner); }},
         OptionCheck::kAny, field.help});
  }
  return fields;
}

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
    APOGEE_RETURN_IF_ERROR(found->Parse(what + ": " + key, text, result));
  }
  options = std::move(result);
  return absl::OkStatus();
}

// Sets the named fields of `options` and returns make(options). A text that SetOptions refuses, or
// an Error of `make`, becomes an error.
template <typename Options, typename Make>
auto MakeWithOptions(const OptionMap& values, const std::string& what, Options options,
                     const Make& make) -> absl::StatusOr<decltype(make(options))> {
  APOGEE_RETURN_IF_ERROR(SetOptions(values, what, options));
  return ErrorToStatus([&] { return make(options); });
}

// Everything that is wrong with the values: the checks of the fields, then those of
// Options::Check(OptionProblems&), if it exists.
template <typename Options>
std::vector<std::string> ProblemsOf(const Options& options) {
  OptionProblems problems;
  for (const OptionField<Options>& field : Options::Fields()) {
    if (field.check == OptionCheck::kAny) continue;
    std::visit(
        [&]<typename Member>(const Member& member) {
          if constexpr (std::is_member_object_pointer_v<Member>) {
            problems.RunField(field.check, field.name, options.*member);
          }
        },
        field.member);
  }
  if constexpr (requires { options.Check(problems); }) options.Check(problems);
  return problems.list();
}

template <typename Options>
OptionMap GetOptions(const Options& options) {
  OptionMap values;
  for (const OptionField<Options>& field : Options::Fields()) {
    values[field.name] = field.Format(options);
  }
  return values;
}

// Hashes option values by their bits. Ranks compare such hashes in every step to detect options
// that differ (core/options_agreement.h).
//
//   OptionHash hash;
//   hash.AddFields(options(group));       // all of its Fields(), in their order
//   hash.value();
class OptionHash {
 public:
  // The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), chained.
  void Add(uint64_t bits) {
    uint64_t z = (value_ ^ bits) + 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    value_ = z ^ (z >> 31);
  }
  void Add(int64_t value) { Add(static_cast<uint64_t>(value)); }
  void Add(int value) { Add(int64_t{value}); }
  void Add(bool value) { Add(uint64_t{value}); }
  void Add(double value) { Add(std::bit_cast<uint64_t>(value)); }
  void Add(const std::string& text) {
    Add(uint64_t{text.size()});
    for (const char c : text) Add(uint64_t{static_cast<unsigned char>(c)});
  }
  template <typename T, size_t n>
  void Add(const std::array<T, n>& values) {
    for (const T& value : values) Add(value);
  }
  template <typename T>
  void Add(const std::vector<T>& values) {
    Add(uint64_t{values.size()});
    for (const T& value : values) Add(value);
  }
  template <typename Options>
  void AddFields(const Options& options) {
    for (const OptionField<Options>& field : Options::Fields()) {
      std::visit(
          [&]<typename Member>(const Member& member) {
            if constexpr (std::is_member_object_pointer_v<Member>) {
              Add(options.*member);
            } else {
              Add(member.format(options));
            }
          },
          field.member);
    }
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_OPTIONS_H_
