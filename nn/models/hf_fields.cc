// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/models/hf_fields.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <utility>

#include "apogee/core/text/json_reader.h"
#include "apogee/core/text/text.h"

namespace apogee::nn {
namespace {

using internal::Concat;
using Kind = HfValue::Kind;

constexpr size_t kMaxDepth = 16;
constexpr size_t kMaxKeys = 4096;  // of all objects together
constexpr size_t kMaxKeyBytes = 256;
constexpr size_t kMaxTextBytes = 256;      // of a kept string; longer ones are truncated
constexpr size_t kMaxListed = 64;          // different values of a kept list
constexpr size_t kMaxLayerTypes = 10'000;  // values of layer_types
constexpr std::array kTokenFields = {"bos_token_id", "eos_token_id", "pad_token_id"};

constexpr const char* kLayerTypes = "layer_types";
constexpr const char* kDenseLayers = "mlp_only_layers";

bool IsKeptList(const std::string& name) {
  return name == "architectures" || name == kLayerTypes || name == kDenseLayers ||
         std::ranges::find(kTokenFields, name) != kTokenFields.end();
}

class FieldParser : public JsonHandler {
 public:
  std::map<std::string, HfValue> values;
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
    return Value({.kind = Kind::kString, .text = value.substr(0, kMaxTextBytes)});
  }

  bool StartObject() override { return Open(false); }
  bool Key(std::string& value) override {
    if (value.size() > kMaxKeyBytes) return Fail(Concat("a key of over ", kMaxKeyBytes, " bytes"));
    if (++num_keys_ > kMaxKeys) return Fail(Concat("more than ", kMaxKeys, " keys"));
    if (!stack_.back().keys.insert(value).second) {
      return Fail(Concat("\"", value, "\" is given twice"));
    }
    // The size of an object: config.json lists an image model's labels in one.
    if (stack_.size() == 2 && !stack_.back().is_list) ++values[counted_].integer;
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
    std::string path = {};  // prefix of fields: "", "rope_parameters."; a list's name
    std::set<std::string> keys = {};
  };

  bool Value(HfValue value) {
    if (stack_.empty()) return Fail("the text must be one object, got " + DescribeValue(value));
    const Level& level = stack_.back();
    if (level.is_kept && level.is_list) return Append(level.path, std::move(value));
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
    if (!Value({.kind = is_list ? Kind::kList : Kind::kObject})) return false;
    if (!is_list && stack_.size() == 1) counted_ = key_;
    const bool is_kept =
        stack_.size() == 1 && (is_list ? IsKeptList(key_)
                                       : key_ == "rope_parameters" || key_ == "rope_scaling" ||
                                             key_ == "quantization_config");
    stack_.push_back({.is_list = is_list,
                      .is_kept = is_kept,
                      .path = !is_kept  ? ""
                              : is_list ? key_
                                        : key_ + "."});
    return true;
  }
  bool Append(const std::string& name, HfValue value) {
    std::vector<HfValue>& list = values[name].list;
    const bool every = name == kLayerTypes;  // one value for each layer
    if (!every && std::ranges::find(list, value) != list.end()) return true;
    const size_t most = every || name == kDenseLayers ? kMaxLayerTypes : kMaxListed;
    if (list.size() == most) {
      return Fail(Concat("\"", name, "\" lists more than ", most, " values"));
    }
    list.push_back(std::move(value));
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
  std::string key_, counted_;
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
  return fields;
}

const HfValue* HfFields::Find(const std::string& name) const {
  read_.insert(name);
  const auto found = values_.find(name);
  const bool given = found != values_.end() && found->second.kind != Kind::kNull;
  return given ? &found->second : nullptr;
}

bool HfFields::Has(const std::string& name) const { return Find(name) != nullptr; }

bool HfFields::Is(const std::string& name, const std::string& text) const {
  const HfValue* value = Find(name);
  return value != nullptr && value->kind == Kind::kString && value->text == text;
}

bool HfFields::HasNull(const std::string& name) const {
  return values_.contains(name) && !Has(name);
}

int64_t HfFields::CountKeys(const std::string& name) const {
  const HfValue* value = Find(name);
  return value != nullptr && value->kind == Kind::kObject ? value->integer : 0;
}

std::string HfFields::Text(const std::string& name, const std::string& missing) {
  const HfValue* value = Find(name);
  if (value == nullptr) return missing;
  if (value->kind != Kind::kString) Refuse(name, "must be a text");
  return value->text;
}

std::vector<std::string> HfFields::Texts(const std::string& name) {
  std::vector<std::string> texts;
  const HfValue* value = Find(name);
  if (value == nullptr) return texts;
  if (value->kind != Kind::kList) Refuse(name, "must be a list of texts, or null");
  for (const HfValue& item : value->list) {
    if (item.kind != Kind::kString) Refuse(name, "must be a list of texts, or null");
    texts.push_back(item.text);
  }
  return texts;
}

std::vector<int64_t> HfFields::Integers(const std::string& name) {
  std::vector<int64_t> integers;
  const HfValue* value = Find(name);
  if (value == nullptr) return integers;
  if (value->kind != Kind::kList) Refuse(name, "must be a list of whole numbers, or null");
  for (const HfValue& item : value->list) {
    if (item.kind != Kind::kInteger || item.integer < 0) {
      Refuse(name, "must be a list of whole numbers from 0, or null");
    }
    integers.push_back(item.integer);
  }
  return integers;
}

std::optional<int64_t> HfFields::Id(const std::string& name, std::optional<int64_t> missing) {
  if (HasNull(name)) return std::nullopt;
  const HfValue* value = Find(name);
  if (value == nullptr) return missing;
  if (value->kind != Kind::kInteger) Refuse(name, "must be a whole number, or null");
  return value->integer;
}

TokenIds HfFields::ReadTokenIds() {
  TokenIds ids;
  for (const std::string name : kTokenFields) {
    const auto given = values_.find(name);
    if (given == values_.end()) continue;
    std::vector<HfValue> values = {given->second};
    if (given->second.kind == Kind::kNull) values.clear();
    if (given->second.kind == Kind::kList) values = given->second.list;
    for (const HfValue& value : values) {
      if (value.kind != Kind::kInteger) {
        Refuse(name, "must be a whole number, a list of such, or null");
      }
      ids[name].push_back(value.integer);
    }
    ids.try_emplace(name);
  }
  return ids;
}

void HfFields::AlsoAs(const std::string& name, const std::string& alias) {
  const HfValue* given = Find(alias);
  if (given == nullptr) return;
  if (const HfValue* other = Find(name); other != nullptr && *other != *given) {
    Refuse(name,
           Concat("must be \"", alias, "\", ", DescribeValue(*given), ": both mean the same"));
  }
  values_[name] = *given;
}

void HfFields::Refuse(const std::string& name, const std::string& why) {
  if (!status_.ok()) return;
  const HfValue* value = Find(name);
  status_ = InvalidArgument(path_, ": \"", name, "\" is ",
                            value == nullptr ? "missing" : DescribeValue(*value), ", ", why);
}

int64_t HfFields::Size(const std::string& name, int64_t missing, int64_t least) {
  const HfValue* value = Find(name);
  if (value == nullptr) return missing;
  if (value->kind == Kind::kInteger && value->integer >= least &&
      value->integer <= std::numeric_limits<int32_t>::max()) {
    return value->integer;
  }
  Refuse(name, Concat("must be a whole number from ", least, " to 2^31 - 1"));
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

void HfFields::MustList(const std::string& name, const std::string& text) {
  const HfValue* given = Find(name);
  if (given == nullptr) return;
  const HfValue wanted{.kind = Kind::kString, .text = text};
  if (std::ranges::find(given->list, wanted) != given->list.end()) return;
  Refuse(name, "must be a list with \"" + text + "\"");
}

void HfFields::MustListOnly(const std::string& name, const std::string& text) {
  const HfValue* given = Find(name);
  if (given == nullptr) return;
  const HfValue wanted{.kind = Kind::kString, .text = text};
  if (given->kind == Kind::kList &&
      std::ranges::all_of(given->list, [&](const auto& value) { return value == wanted; })) {
    return;
  }
  Refuse(name, "must be a list with nothing but \"" + text + "\"");
}

}  // namespace apogee::nn
