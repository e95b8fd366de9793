// SPDX-License-Identifier: Apache-2.0

// The texts of an enumeration, for command lines, configuration files and messages.
//
//   constexpr EnumName<Fruit> kFruits[] = {{Fruit::kApple, "apple"}, {Fruit::kPear, "pear"}};
//   const char* Name(Fruit fruit) { return NameOf<Fruit>(kFruits, fruit); }
//   absl::StatusOr<Fruit> ParseFruit(const std::string& text) {
//     return ParseName<Fruit>("fruit", kFruits, text);
//   }
//
// The first text of a value is its name; further ones are read, too, and never printed.
#ifndef APOGEE_CORE_TEXT_ENUM_NAMES_H_
#define APOGEE_CORE_TEXT_ENUM_NAMES_H_

#include <span>
#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/core/text/text.h"

namespace apogee {

template <typename Enum>
struct EnumName {
  Enum value;
  const char* text;
};

// Throws Error for a number that is no value of the enumeration.
template <typename Enum>
const char* NameOf(std::span<const EnumName<Enum>> names, Enum value) {
  for (const EnumName<Enum>& name : names) {
    if (name.value == value) return name.text;
  }
  Throw("number ", static_cast<int>(value), " is no value of its enumeration");
}

// An unknown text is an error that says which are known. `what` names the option.
template <typename Enum>
absl::StatusOr<Enum> ParseName(const std::string& what, std::span<const EnumName<Enum>> names,
                               const std::string& text) {
  std::vector<std::string> known;
  for (const EnumName<Enum>& name : names) {
    if (text == name.text) return name.value;
    if (NameOf(names, name.value) == name.text) known.push_back(name.text);
  }
  return InvalidArgument(UnknownName(what, text, known));
}

}  // namespace apogee

#endif  // APOGEE_CORE_TEXT_ENUM_NAMES_H_
