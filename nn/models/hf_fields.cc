#include "apogee/nn/models/hf_fields.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

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

// The events of nlohmann::json::sax_parse. A handler that returns false stops the parse.
class FieldParser {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  std::map<std::string, HfValue> values;
  std::set<std::string> architectures;
  std::string problem;

  bool null() { return Value({}); }
  bool boolean(bool value) { return Value({.kind = Kind::kBool, .flag = value}); }
  bool number_integer(number_integer_t value) {
    return Value({.kind = Kind::kInteger, .integer = value, .real = static_cast<double>(value)});
  }
  bool number_unsigned(number_unsigned_t value) {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Value({.kind = Kind::kReal, .real = static_cast<double>(value)});
    }
    return number_integer(static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t&) {
    return Value({.kind = Kind::kReal, .real = value});
  }
  bool binary(binary_t&) { return Fail("binary data is not allowed"); }
  bool string(string_t& value) {
    if (stack_.size() == 2 && stack_[1].is_list && key_ == "architectures" &&
        architectures.size() < kMaxArchitectures) {
      architectures.insert(value.substr(0, kMaxTextBytes));
    }
    return Value({.kind = Kind::kString, .text = value.substr(0, kMaxTextBytes)});
  }

  bool start_object(std::size_t) {
    if (ended_) return Fail("more than one object");
    return Open(false);
  }
  bool key(string_t& value) {
    if (value.size() > kMaxKeyBytes) return Fail(Concat("a key of over ", kMaxKeyBytes, " bytes"));
    if (++num_keys_ > kMaxKeys) return Fail(Concat("more than ", kMaxKeys, " keys"));
    if (!stack_.back().keys.insert(value).second) {
      return Fail(Concat("\"", value, "\" is given twice"));
    }
    key_ = value;
    return true;
  }
  bool end_object() { return Close(); }
  bool start_array(std::size_t) { return Open(true); }
  bool end_array() { return Close(); }

  bool parse_error(std::size_t byte, const std::string&, const nlohmann::json::exception& error) {
    const std::string text = error.what();
    const size_t colon = text.find(": ");
    return Fail(Concat("byte ", byte, ": not valid JSON: ",
                       colon == std::string::npos ? text : text.substr(colon + 2)));
  }

 private:
  struct Level {
    bool is_list = false;
    std::string path = {};  // of its fields: "", "rope_parameters."
    std::set<std::string> keys = {};
  };

  bool Value(HfValue value) {
    if (stack_.empty()) return Fail("the text must be one object, got " + Describe(value));
    // Of lists nothing is kept, nor of objects inside of them or far down.
    const Level& level = stack_.back();
    if (!level.is_list && stack_.size() <= 2 && level.path != "-") {
      values[level.path + key_] = std::move(value);
    }
    return true;
  }
  bool Open(bool is_list) {
    if (stack_.empty()) {
      if (is_list) return Fail("the text must be one object, got a list");
      stack_.push_back({});
      return true;
    }
    if (stack_.size() == kMaxDepth) return Fail(Concat("more than ", kMaxDepth, " levels"));
    Value({.kind = is_list ? Kind::kList : Kind::kObject});
    const bool top = stack_.size() == 1;
    stack_.push_back({.is_list = is_list, .path = top && !is_list ? key_ + "." : "-"});
    return true;
  }
  bool Close() {
    stack_.pop_back();
    ended_ = stack_.empty();
    return true;
  }
  bool Fail(const std::string& what) {
    problem = what;
    return false;
  }

  std::vector<Level> stack_;
  std::string key_;
  size_t num_keys_ = 0;
  bool ended_ = false;
};

}  // namespace

absl::StatusOr<HfFields> HfFields::Parse(const std::string& json, const std::string& path) {
  FieldParser parser;
  if (!nlohmann::json::sax_parse(json, &parser)) return DataLoss(path, ": ", parser.problem);
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
