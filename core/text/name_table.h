// SPDX-License-Identifier: Apache-2.0

// NameTable: entries by name, for registries.
//
//   NameTable<Recipe> recipes("recipe");
//   recipes.Add("soup", {...});          // throws Error if "soup" is taken
//   auto soup = recipes.Find("soop");         // an error: did you mean "soup"?
#ifndef APOGEE_CORE_TEXT_NAME_TABLE_H_
#define APOGEE_CORE_TEXT_NAME_TABLE_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/core/text/text.h"

namespace apogee {

template <typename Entry>
class NameTable {
 public:
  // `kind`: the word for an entry in messages.
  explicit NameTable(std::string kind) : kind_(std::move(kind)) {}

  // Throws Error if the name is empty or taken.
  void Add(const std::string& name, Entry entry) {
    APOGEE_CHECK(!name.empty(), "a ", kind_, " was added without a name; give it one");
    APOGEE_CHECK(entries_.try_emplace(name, std::move(entry)).second, "the name \"", name,
                 "\" is taken by another ", kind_, "; choose another one");
  }
  // NotFound for an unknown name. The entry lives as long as the table.
  absl::StatusOr<const Entry*> Find(const std::string& name) const {
    const auto found = entries_.find(name);
    if (found == entries_.end()) return NotFound(UnknownName(kind_, name, names()));
    return &found->second;
  }
  bool contains(const std::string& name) const { return entries_.contains(name); }
  // Sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, entry] : entries_) names.push_back(name);
    return names;
  }

 private:
  std::string kind_;
  std::map<std::string, Entry> entries_;
};

}  // namespace apogee

#endif  // APOGEE_CORE_TEXT_NAME_TABLE_H_
