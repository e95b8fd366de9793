// SPDX-License-Identifier: Apache-2.0

#include "apogee/report/files/flat_json.h"

#include <limits>
#include <utility>

#include "apogee/core/text/json_reader.h"

namespace apogee::report {

class FlatJsonHandler final : public JsonHandler {
 public:
  FlatJsonHandler(FlatJson& json, size_t text_bytes) : json_(json), budget_(text_bytes) {}

  bool Null() override { return Add(FlatJson::Other()); }
  bool Boolean(bool) override { return Add(FlatJson::Other()); }
  bool Negative(int64_t) override { return Add(FlatJson::Other()); }
  bool Real(double) override { return Add(FlatJson::Other()); }
  bool String(std::string& text) override {
    return (budget_.TakeText(text) || Fail("is too large")) && Add(std::move(text));
  }
  bool Unsigned(uint64_t value) override {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Add(FlatJson::Other());
    }
    return Add(static_cast<int64_t>(value));
  }
  bool StartObject() override { return Open(/*is_list=*/false); }
  bool StartList() override { return Open(/*is_list=*/true); }
  bool EndObject() override { return Close(); }
  bool EndList() override { return Close(); }
  bool Key(std::string& key) override {
    open_.back().key = std::move(key);
    return true;
  }

  std::string problem;

 private:
  struct Level {
    size_t pointer_bytes;  // of the container's own pointer
    bool is_list;
    std::string key;
    size_t num_children = 0;
  };

  bool Fail(const std::string& what) {
    problem = what;
    return false;
  }
  // Moves pointer_ to the value that comes next, and notes its name in the container.
  bool Enter() {
    if (open_.empty()) return true;
    Level& level = open_.back();
    pointer_.resize(level.pointer_bytes);
    const std::string name = level.is_list ? std::to_string(level.num_children) : level.key;
    ++level.num_children;
    auto& names = std::get<FlatJson::Names>(json_.values_.at(pointer_));
    if (!budget_.TakeElement(names) || !budget_.TakeText(name)) return Fail("is too large");
    names.push_back(name);
    pointer_ = FlatJson::Child(pointer_, name);
    return true;
  }
  bool Add(FlatJson::Value value) {
    if (!Enter()) return false;
    const size_t bytes = sizeof(std::pair<std::string, FlatJson::Value>) + kMapNodeBytes;
    if (!budget_.Take(bytes) || !budget_.TakeText(pointer_)) return Fail("is too large");
    if (!json_.values_.emplace(pointer_, std::move(value)).second) {
      return Fail("\"" + Shortened(pointer_) + "\" is given twice");
    }
    return true;
  }
  bool Open(bool is_list) {
    if (!Add(FlatJson::Names())) return false;
    open_.push_back({.pointer_bytes = pointer_.size(), .is_list = is_list, .key = {}});
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  FlatJson& json_;
  ParseBudget budget_;
  std::string pointer_;
  std::vector<Level> open_;
};

std::string FlatJson::Child(const std::string& pointer, const std::string& key) {
  std::string child = pointer + "/";
  for (const char c : key) {
    if (c == '~') {
      child += "~0";
    } else if (c == '/') {
      child += "~1";
    } else {
      child += c;
    }
  }
  return child;
}

absl::StatusOr<FlatJson> FlatJson::Read(const std::string& text, const std::string& path) {
  FlatJson json;
  json.path_ = path;
  FlatJsonHandler handler(json, text.size());
  JsonReader reader(text);
  if (!reader.Read(handler)) {
    return DataLoss(path, ": byte ", reader.byte(), ": ",
                    reader.problem().empty() ? handler.problem : reader.problem());
  }
  return json;
}

absl::Status FlatJson::Wrong(const std::string& pointer, const std::string& expected) const {
  const auto it = values_.find(pointer);
  return DataLoss(path_, ": \"", pointer, "\" ",
                  it == values_.end() ? "is missing" : "must be " + expected);
}

absl::StatusOr<int64_t> FlatJson::Count(const std::string& pointer) const {
  const auto it = values_.find(pointer);
  const int64_t* count = it == values_.end() ? nullptr : std::get_if<int64_t>(&it->second);
  if (count == nullptr) return Wrong(pointer, "a whole number from 0 to 2^63 - 1");
  return *count;
}

absl::StatusOr<std::string> FlatJson::Text(const std::string& pointer) const {
  const auto it = values_.find(pointer);
  const std::string* text = it == values_.end() ? nullptr : std::get_if<std::string>(&it->second);
  if (text == nullptr) return Wrong(pointer, "a text");
  return *text;
}

absl::StatusOr<std::vector<std::string>> FlatJson::Children(const std::string& pointer) const {
  const auto it = values_.find(pointer);
  const Names* names = it == values_.end() ? nullptr : std::get_if<Names>(&it->second);
  if (names == nullptr) return Wrong(pointer, "an object or a list");
  return *names;
}

}  // namespace apogee::report
