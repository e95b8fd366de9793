// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/json_lines/json_line.h"

#include <algorithm>
#include <utility>

#include "apogee/core/text/json_reader.h"

namespace apogee::data {
namespace {

constexpr size_t kMaxOtherFields = 8;

class FieldHandler : public JsonHandler {
 public:
  explicit FieldHandler(const std::vector<std::string>& names) : names_(names) {
    line.values.resize(names.size());
  }
  JsonLine line;
  std::string problem;

  bool Null() override { return Other("null"); }
  bool Boolean(bool) override { return Other("a boolean"); }
  bool Negative(int64_t) override { return Other("a number"); }
  bool Unsigned(uint64_t) override { return Other("a number"); }
  bool Real(double) override { return Other("a number"); }
  bool String(std::string& value) override {
    if (here_ == nullptr) return Other("a string");
    *here_ = std::move(value);
    here_ = nullptr;
    return true;
  }
  bool StartObject() override { return Other("an object", /*is_object=*/true) && ++depth_ > 0; }
  bool Key(std::string& key) override {
    if (depth_ > 1) return true;
    const auto name = std::ranges::find(names_, key);
    if (name == names_.end()) {
      if (line.others.size() < kMaxOtherFields) line.others.push_back(Shortened(key));
      return true;
    }
    here_ = &line.values[static_cast<size_t>(name - names_.begin())];
    return !here_->has_value() || Fail("has the field \"" + *name + "\" twice");
  }
  bool EndObject() override { return --depth_ >= 0; }
  bool StartList() override { return Other("a list") && ++depth_ > 0; }
  bool EndList() override { return --depth_ >= 0; }

 private:
  // A value that is not the text of a field.
  bool Other(const char* what, bool is_object = false) {
    if (depth_ == 0 && !is_object) return Fail(std::string("is ") + what + ", not an object");
    if (here_ == nullptr) return true;
    const std::string& name = names_[static_cast<size_t>(here_ - line.values.data())];
    return Fail("the field \"" + name + "\" is " + what + ", not a string");
  }
  bool Fail(const std::string& what) {
    problem = what;
    return false;
  }

  const std::vector<std::string>& names_;
  int64_t depth_ = 0;
  std::optional<std::string>* here_ = nullptr;  // the field whose value comes next
};

}  // namespace

absl::StatusOr<JsonLine> ReadJsonLine(const std::string& line,
                                      const std::vector<std::string>& names) {
  FieldHandler handler(names);
  JsonReader reader(line);
  if (reader.Read(handler)) return std::move(handler.line);
  if (reader.problem().empty()) return InvalidArgument(handler.problem);
  return InvalidArgument(reader.problem(), " at byte ", reader.byte(), " of the line");
}

}  // namespace apogee::data
