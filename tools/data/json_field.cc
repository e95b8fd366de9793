// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/data/json_field.h"

#include "apogee/core/text/json_reader.h"

namespace apogee::tools {
namespace {

class FieldHandler : public JsonHandler {
 public:
  explicit FieldHandler(const std::string& field) : field_(field) {}
  std::string text, problem;
  bool found = false;

  bool Null() override { return Other("null"); }
  bool Boolean(bool) override { return Other("a boolean"); }
  bool Negative(int64_t) override { return Other("a number"); }
  bool Unsigned(uint64_t) override { return Other("a number"); }
  bool Real(double) override { return Other("a number"); }
  bool String(std::string& value) override {
    if (!here_) return Other("a string");
    text = std::move(value);
    found = true;
    here_ = false;
    return true;
  }
  bool StartObject() override { return Other("an object", /*is_object=*/true) && ++depth_ > 0; }
  bool Key(std::string& key) override {
    here_ = depth_ == 1 && key == field_;
    return !(here_ && found) || Fail("has the field \"" + field_ + "\" twice");
  }
  bool EndObject() override { return --depth_ >= 0; }
  bool StartList() override { return Other("a list") && ++depth_ > 0; }
  bool EndList() override { return --depth_ >= 0; }

 private:
  // A value that is not the text.
  bool Other(const char* what, bool is_object = false) {
    if (depth_ == 0 && !is_object) return Fail(std::string("is ") + what + ", not an object");
    return !here_ || Fail("the field \"" + field_ + "\" is " + what + ", not a string");
  }
  bool Fail(const std::string& what) {
    problem = what;
    return false;
  }

  const std::string& field_;
  int64_t depth_ = 0;
  bool here_ = false;  // the value of the field comes next
};

}  // namespace

absl::StatusOr<std::string> JsonField(const std::string& line, const std::string& field) {
  FieldHandler handler(field);
  JsonReader reader(line);
  if (!reader.Read(handler)) {
    if (reader.problem().empty()) return InvalidArgument(handler.problem);
    return InvalidArgument(reader.problem(), " at byte ", reader.byte(), " of the line");
  }
  if (!handler.found) return InvalidArgument("has no field \"", field, "\"");
  return std::move(handler.text);
}

}  // namespace apogee::tools
