// SPDX-License-Identifier: Apache-2.0

// FlatJson: a small JSON document as a list of values, each with its JSON Pointer (RFC 6901).
//
//   APOGEE_ASSIGN_OR_RETURN(const FlatJson json, FlatJson::Read(text, "out/plan.json"));
//   APOGEE_ASSIGN_OR_RETURN(int64_t bytes, json.Count("/ranks/0/measured_peak_bytes"));
//   for (const std::string& name : json.Children("/ranks/0/categories")) ...
//
// The text may be hostile: memory is bounded by its size (ParseBudget). Errors are DataLoss;
// they name the file, and the byte or the pointer.
#ifndef APOGEE_REPORT_FILES_FLAT_JSON_H_
#define APOGEE_REPORT_FILES_FLAT_JSON_H_

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::report {

class FlatJson {
 public:
  // `path`: for messages.
  static absl::StatusOr<FlatJson> Read(const std::string& text, const std::string& path);

  // A whole number from 0 to 2^63 - 1.
  absl::StatusOr<int64_t> Count(const std::string& pointer) const;
  absl::StatusOr<std::string> Text(const std::string& pointer) const;
  // The keys of an object in the order of the text, or "0", "1", ... of a list. An error if
  // something else is there.
  absl::StatusOr<std::vector<std::string>> Children(const std::string& pointer) const;
  // Whether anything is there.
  bool Has(const std::string& pointer) const { return values_.contains(pointer); }

  // `pointer` with the key of a child added: "/a" and "b/c" make "/a/b~1c".
  static std::string Child(const std::string& pointer, const std::string& key);

 private:
  friend class FlatJsonHandler;
  using Names = std::vector<std::string>;
  struct Other {};  // null, a truth value, or a number that is no count
  using Value = std::variant<Other, int64_t, std::string, Names>;

  absl::Status Wrong(const std::string& pointer, const std::string& expected) const;

  std::string path_;
  std::map<std::string, Value> values_;
};

}  // namespace apogee::report

#endif  // APOGEE_REPORT_FILES_FLAT_JSON_H_
