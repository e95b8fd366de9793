// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/lora/adapter_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "apogee/core/text/json_reader.h"
#include "apogee/core/text/text.h"

namespace apogee {
namespace {

using internal::Concat;

constexpr size_t kMaxEntries = 100'000;
constexpr size_t kMaxDepth = 4;

// Fields that do not change what an adapter computes.
constexpr std::array kNeutral = {"auto_mapping",   "base_model_name_or_path",
                                 "fan_in_fan_out", "inference_mode",
                                 "megatron_core",  "peft_type",
                                 "peft_version",   "qalora_group_size",
                                 "revision",       "runtime_config",
                                 "task_type"};

// One field: a scalar, the texts of a list, or the numbers of an object.
struct Field {
  enum class Kind { kNull, kFlag, kNumber, kText, kList, kObject } kind = Kind::kNull;
  bool flag = false;
  double number = 0;
  std::string text = {};
  std::vector<std::string> list = {};
  std::map<std::string, double> object = {};
  bool is_nested = false;  // more than that

  bool IsOff() const {
    return kind == Kind::kNull || (kind == Kind::kFlag && !flag) ||
           (kind == Kind::kList && list.empty() && !is_nested) ||
           (kind == Kind::kObject && object.empty() && !is_nested);
  }
};

class Handler : public JsonHandler {
 public:
  std::map<std::string, Field> fields;
  std::string problem;

  bool Null() override { return Value({}); }
  bool Boolean(bool value) override { return Value({.kind = Field::Kind::kFlag, .flag = value}); }
  bool Negative(int64_t value) override { return Real(static_cast<double>(value)); }
  bool Unsigned(uint64_t value) override { return Real(static_cast<double>(value)); }
  bool Real(double value) override {
    return Value({.kind = Field::Kind::kNumber, .number = value});
  }
  bool String(std::string& value) override {
    return Value({.kind = Field::Kind::kText, .text = value});
  }
  bool StartObject() override { return Open(Field::Kind::kObject); }
  bool StartList() override { return Open(Field::Kind::kList); }
  bool EndObject() override { return Close(); }
  bool EndList() override { return Close(); }
  bool Key(std::string& key) override {
    if (++num_entries_ > kMaxEntries) return Fail(Concat("more than ", kMaxEntries, " entries"));
    if (depth_ == 1) {
      if (fields.contains(key)) return Fail(Concat("\"", key, "\" is given twice"));
      field_ = &fields[key];
    } else if (depth_ == 2 && field_->object.contains(key)) {
      return Fail(Concat("\"", key, "\" is given twice"));
    }
    key_ = key;
    return true;
  }

 private:
  bool Fail(const std::string& why) {
    problem = why;
    return false;
  }
  bool Open(Field::Kind kind) {
    if (depth_ == 0 && kind != Field::Kind::kObject) return Fail("the text must be one object");
    if (depth_ == kMaxDepth) return Fail(Concat("more than ", kMaxDepth, " levels"));
    if (depth_ == 1) field_->kind = kind;
    if (depth_ > 1) field_->is_nested = true;
    ++depth_;
    return true;
  }
  bool Close() {
    --depth_;
    return true;
  }
  bool Value(Field value) {
    if (depth_ == 0) return Fail("the text must be one object");
    if (++num_entries_ > kMaxEntries) return Fail(Concat("more than ", kMaxEntries, " entries"));
    if (depth_ == 1) {
      *field_ = std::move(value);
    } else if (depth_ > 2) {
      field_->is_nested = true;
    } else if (field_->kind == Field::Kind::kList) {
      if (value.kind == Field::Kind::kText) {
        field_->list.push_back(std::move(value.text));
      } else {
        field_->is_nested = true;
      }
    } else if (value.kind == Field::Kind::kNumber) {
      field_->object[key_] = value.number;
    } else {
      field_->is_nested = true;
    }
    return true;
  }

  size_t depth_ = 0, num_entries_ = 0;
  Field* field_ = nullptr;
  std::string key_;
};

// Reads fields and collects what is wrong.
class Reader {
 public:
  explicit Reader(std::map<std::string, Field> fields) : fields_(std::move(fields)) {}

  std::string problems;

  double Number(const std::string& name, double missing) {
    const Field field = Take(name);
    if (field.kind == Field::Kind::kNull) return missing;
    if (field.kind == Field::Kind::kNumber) return field.number;
    AddProblem(problems, "\"", name, "\" must be a number");
    return missing;
  }
  int64_t Whole(const std::string& name, double value) {
    if (value == std::floor(value) && std::abs(value) < 1e9) return static_cast<int64_t>(value);
    AddProblem(problems, "\"", name, "\" must be a whole number, got ", value);
    return 1;
  }
  bool Flag(const std::string& name) {
    const Field field = Take(name);
    if (field.kind != Field::Kind::kNull && field.kind != Field::Kind::kFlag) {
      AddProblem(problems, "\"", name, "\" must be true or false");
    }
    return field.flag;
  }
  std::string Text(const std::string& name, const std::string& missing) {
    const Field field = Take(name);
    if (field.kind == Field::Kind::kNull) return missing;
    if (field.kind != Field::Kind::kText) AddProblem(problems, "\"", name, "\" must be a text");
    return field.text;
  }
  // `or_text`: a single text, too, if it is this one.
  std::vector<std::string> Names(const std::string& name, const char* or_text = nullptr) {
    const Field field = Take(name);
    if (field.kind == Field::Kind::kNull) return {};
    if (or_text != nullptr && field.kind == Field::Kind::kText) {
      if (field.text == or_text) return {field.text};
      AddProblem(problems, "\"", name, "\" is the regular expression \"", Shortened(field.text),
                 "\"; write a list of ends of names, or \"", or_text, "\"");
      return {};
    }
    if (field.kind != Field::Kind::kList || field.is_nested) {
      AddProblem(problems, "\"", name, "\" must be a list of names");
    }
    for (const std::string& key : field.list) CheckName(name, key);
    return field.list;
  }
  std::map<std::string, double> Pattern(const std::string& name) {
    const Field field = Take(name);
    if (field.kind == Field::Kind::kNull) return {};
    if (field.kind != Field::Kind::kObject || field.is_nested) {
      AddProblem(problems, "\"", name, "\" must be an object of numbers");
    }
    for (const auto& [key, value] : field.object) CheckName(name, key);
    return field.object;
  }
  // How PEFT made the first values. Some ways change the base weights, too.
  void CheckInit() {
    const Field field = Take("init_lora_weights");
    if (field.kind != Field::Kind::kText || field.text == "gaussian") return;
    AddProblem(problems, "\"init_lora_weights\" is \"", Shortened(field.text),
               "\", which may change the base weights; save the adapter with plain factors");
  }
  // The fields that nothing has read must be off.
  void RefuseRest() {
    for (const auto& [name, field] : fields_) {
      if (field.IsOff() || std::ranges::find(kNeutral, name) != kNeutral.end()) continue;
      AddProblem(problems, "field \"", Shortened(name),
                 "\" is not known here, and may change what the adapter computes; only null, false "
                 "and empty values are taken");
    }
  }

 private:
  Field Take(const std::string& name) {
    const auto found = fields_.find(name);
    if (found == fields_.end()) return {};
    Field field = std::move(found->second);
    fields_.erase(found);
    return field;
  }
  // PEFT takes keys as regular expressions. A dot in a name stands for itself here.
  void CheckName(const std::string& field, const std::string& key) {
    const bool plain = !key.empty() && std::ranges::all_of(key, [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '_' || c == '.' || c == '-';
    });
    if (plain) return;
    AddProblem(problems, "\"", field, "\": \"", Shortened(key),
               "\" is a regular expression; write ends of names");
  }

  std::map<std::string, Field> fields_;
};

}  // namespace

absl::StatusOr<AdapterConfig> ParseAdapterConfig(const std::string& json, const std::string& path) {
  Handler handler;
  JsonReader reader(json);
  if (!reader.Read(handler)) {
    const std::string& why = handler.problem.empty() ? reader.problem() : handler.problem;
    return DataLoss(path, ": byte ", reader.byte(), ": ", why);
  }
  Reader fields(std::move(handler.fields));
  AdapterConfig config;
  const std::string type = fields.Text("peft_type", "LORA");
  if (type != "LORA") {
    return InvalidArgument(path, ": peft_type is \"", Shortened(type), "\"; only LORA is read");
  }
  fields.CheckInit();
  config.base_model = fields.Text("base_model_name_or_path", "");
  config.task_type = fields.Text("task_type", "");
  nn::LoraOptions& lora = config.lora;
  lora.rank = fields.Whole("r", fields.Number("r", 8));
  lora.alpha = fields.Number("lora_alpha", 8);
  lora.dropout = fields.Number("lora_dropout", 0);
  lora.targets = fields.Names("target_modules", "all-linear");
  lora.modules_to_save = fields.Names("modules_to_save");
  lora.use_rslora = fields.Flag("use_rslora");
  lora.use_dora = fields.Flag("use_dora");
  for (const auto& [key, value] : fields.Pattern("rank_pattern")) {
    lora.rank_pattern[key] = fields.Whole("rank_pattern", value);
  }
  lora.alpha_pattern = fields.Pattern("alpha_pattern");
  const std::string bias = fields.Text("bias", "none");
  if (bias == "all") lora.bias = nn::LoraBias::kAll;
  if (bias == "lora_only") lora.bias = nn::LoraBias::kLoraOnly;
  if (bias != "none" && bias != "all" && bias != "lora_only") {
    AddProblem(fields.problems, "\"bias\" must be none, all or lora_only, got \"", Shortened(bias),
               "\"");
  }
  fields.RefuseRest();
  if (!fields.problems.empty()) return InvalidArgument(path, ":", fields.problems);
  return config;
}

namespace {

// Whole numbers as PEFT writes them.
nlohmann::json JsonOf(double value) {
  const bool is_whole = value == std::floor(value) && std::abs(value) < 1e15;
  return is_whole ? nlohmann::json(static_cast<int64_t>(value)) : nlohmann::json(value);
}

nlohmann::json JsonOf(const std::string& text) {
  return text.empty() ? nlohmann::json() : nlohmann::json(text);
}

nlohmann::json JsonOf(std::vector<std::string> names) {
  std::ranges::sort(names);
  return names.empty() ? nlohmann::json() : nlohmann::json(names);
}

template <typename Value>
nlohmann::json JsonOf(const std::map<std::string, Value>& pattern) {
  nlohmann::json entries = nlohmann::json::object();
  for (const auto& [key, value] : pattern) entries[key] = JsonOf(static_cast<double>(value));
  return entries;
}

}  // namespace

std::string FormatAdapterConfig(const AdapterConfig& config, bool fan_in_fan_out) {
  const nn::LoraOptions& lora = config.lora;
  const bool all_linear = lora.targets == std::vector<std::string>{"all-linear"};
  const char* bias = lora.bias == nn::LoraBias::kAll        ? "all"
                     : lora.bias == nn::LoraBias::kLoraOnly ? "lora_only"
                                                            : "none";
  nlohmann::json json;
  json["alpha_pattern"] = JsonOf(lora.alpha_pattern);
  json["base_model_name_or_path"] = JsonOf(config.base_model);
  json["bias"] = bias;
  json["fan_in_fan_out"] = fan_in_fan_out;
  json["inference_mode"] = true;
  json["init_lora_weights"] = true;
  json["lora_alpha"] = JsonOf(lora.alpha);
  json["lora_dropout"] = JsonOf(lora.dropout);
  json["modules_to_save"] = JsonOf(lora.modules_to_save);
  json["peft_type"] = "LORA";
  json["r"] = lora.rank;
  json["rank_pattern"] = JsonOf(lora.rank_pattern);
  json["target_modules"] = all_linear ? nlohmann::json("all-linear") : JsonOf(lora.targets);
  json["task_type"] = JsonOf(config.task_type);
  json["use_dora"] = lora.use_dora;
  json["use_rslora"] = lora.use_rslora;
  // Bytes that are no UTF-8 become U+FFFD.
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace apogee
