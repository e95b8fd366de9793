#include "apogee/nn/models/hf_fields.h"

#include <limits>
#include <utility>
#include <vector>

#include "apogee/core/json_reader.h"

namespace apogee::nn {
namespace {

using internal::Concat;
using Kind = HfValue::Kind;

constexpr size_t kMaxDepth = 16;
constexpr size_t kMaxKeys = 4096;  // of all objects together
constexpr size_t kMaxKeyBytes = 256;
constexpr size_t kMaxTextBytes = 256;  // of a string that is kept; longer ones are cut
constexpr size_t kMaxArchitectures = 16;

std::string Describe(const HfValue& value) {
  switch (value.kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return value.flag ? "true" : "false";
    case Kind::kInteger:
      return Concat(value.integer);
    case Kind::kReal:
      return Concat(value.real);
    case Kind::kString:
      return "\"" + value.text + "\"";
    case Kind::kList:
      return "a list";
    case Kind::kObject:
      return "an object";
  }
  return "";
}

class FieldParser : public JsonHandler {
 public:
  std::map<std::string, HfValue> values;
  std::set<std::string> architectures;
  std::string problem;

  bool Null() override { return Value({}); }
  bool Boolean(bool value) override { return Value({.kind = Kind::kBool, .flag = value}); }
  bool Negative(int64_t value) override {
    return Value({.kind = Kind::kInteger, .integer = value, .real = static_cast<double>(value)});
  }
  bool Unsigned(uint64_t value) override {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Value({.kind = Kind::kReal, .real = static_cast<double>(value)});
    }
    return Negative(static_cast<int64_t>(value));
  }
  bool Real(double value) override { return Value({.kind = Kind::kReal, .real = value}); }
  bool String(std::string& value) override {
    if (stack_.size() == 2 && stack_[1].is_list && key_ == "architectures" &&
        architectures.size() < kMaxArchitectures) {
      architectures.insert(value.substr(0, kMaxTextBytes));
    }
    return Value({.kind = Kind::kString, .text = value.substr(0, kMaxTextBytes)});
  }

  bool StartObject() override { return Open(false); }
  bool Key(std::string& value) override {
    if (value.size() > kMaxKeyBytes) return Fail(Concat("a key of over ", kMaxKeyBytes, " bytes"));
    if (++num_keys_ > kMaxKeys) return Fail(Concat("more than ", kMaxKeys, " keys"));
    if (!stack_.back().keys.insert(value).second) {
      return Fail(Concat("\"", value, "\" is given twice"));
    }
    key_ = value;
    return true;
  }
  bool EndObject() override { return Close(); }
  bool StartList() override { return Open(true); }
  bool EndList() override { return Close(); }

 private:
  struct Level {
    bool is_list = false;
    bool is_kept = false;
    std::string path = {};  // of its fields: "", "rope_parameters."
    std::set<std::string> keys = {};
  };

  bool Value(HfValue value) {
    if (stack_.empty()) return Fail("the text must be one object, got " + Describe(value));
    const Level& level = stack_.back();
    if (level.is_kept) values[level.path + key_] = std::move(value);
    return true;
  }
  bool Open(bool is_list) {
    if (stack_.empty()) {
      if (is_list) return Fail("the text must be one object, got a list");
      stack_.push_back({.is_kept = true});
      return true;
    }
    if (stack_.size() == kMaxDepth) return Fail(Concat("more than ", kMaxDepth, " levels"));
    Value({.kind = is_list ? Kind::kList : Kind::kObject});
    const bool is_kept =
        stack_.size() == 1 && !is_list && (key_ == "rope_parameters" || key_ == "rope_scaling");
    stack_.push_back(
        {.is_list = is_list, .is_kept = is_kept, .path = is_kept ? key_ + "." : std::string()});
    return true;
  }
  bool Close() {
    stack_.pop_back();
    return true;
  }
  bool Fail(const std::string& what) {
    problem = what;
    return false;
  }

  std::vector<Level> stack_;
  std::string key_;
  size_t num_keys_ = 0;
};

}  // namespace

absl::StatusOr<HfFields> HfFields::Parse(const std::string& json, const std::string& path) {
  FieldParser parser;
  JsonReader reader(json);
  if (!reader.Read(parser)) {
    return DataLoss(path, ": byte ", reader.byte(), ": ",
                    reader.problem().empty() ? parser.problem : reader.problem());
  }
  HfFields fields;
  fields.path_ = path;
  fields.values_ = std::move(parser.values);
  fields.architectures_ = std::move(parser.architectures);
  return fields;
}

const HfValue* HfFields::Find(const std::string& name) const {
  const auto found = values_.find(name);
  const bool given = found != values_.end() && found->second.kind != Kind::kNull;
  return given ? &found->second : nullptr;
}

bool HfFields::Has(const std::string& name) const { return Find(name) != nullptr; }

void HfFields::Refuse(const std::string& name, const std::string& why) {
  if (!status_.ok()) return;
  const HfValue* value = Find(name);
  status_ = InvalidArgument(path_, ": \"", name, "\" is ",
                            value == nullptr ? "missing" : Describe(*value), ", ", why);
}

int64_t HfFields::Size(const std::string& name, int64_t missing) {
  const HfValue* value = Find(name);
  if (value == nullptr) return missing;
  if (value->kind == Kind::kInteger && value->integer >= 1 &&
      value->integer <= std::numeric_limits<int32_t>::max()) {
    return value->integer;
  }
  Refuse(name, "must be a whole number from 1 to 2^31 - 1");
  return missing;
}

double HfFields::Number(const std::string& name, double missing, const HfRange& range) {
  const HfValue* value = Find(name);
  if (value == nullptr) return missing;
  const bool number = value->kind == Kind::kInteger || value->kind == Kind::kReal;
  if (number && value->real >= range.from && value->real < range.below) return value->real;
  Refuse(name, Concat("must be a number from ", range.from, " to below ", range.below));
  return missing;
}

bool HfFields::Flag(const std::string& name, bool missing) {
  const HfValue* value = Find(name);
  if (value == nullptr) return missing;
  if (value->kind != Kind::kBool) Refuse(name, "must be true or false");
  return value->flag;
}

void HfFields::MustBe(const std::string& name, bool value) {
  if (Flag(name, value) != value) Refuse(name, Concat("only ", value ? "true" : "false", " works"));
}

void HfFields::MustBe(const std::string& name, int64_t value) {
  if (Size(name, value) != value) Refuse(name, Concat("only ", value, " works"));
}

void HfFields::MustBe(const std::string& name, const std::string& value) {
  const HfValue* given = Find(name);
  if (given == nullptr || (given->kind == Kind::kString && given->text == value)) return;
  Refuse(name, "only \"" + value + "\" works");
}

void HfFields::MustNameArchitecture(const std::string& name) {
  const HfValue* given = Find("architectures");
  if (given == nullptr || architectures_.contains(name)) return;
  Refuse("architectures", "must be a list with \"" + name + "\"");
}

}  // namespace apogee::nn
