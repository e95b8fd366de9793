// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/tokenizer/formats/json_fields.h"

#include <utility>

#include "apogee/core/text/json_reader.h"

namespace apogee::data {

std::string JsonNode::Shown() const {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBoolean:
      return boolean ? "true" : "false";
    case Kind::kInteger:
      return std::to_string(integer);
    case Kind::kReal:
      return std::to_string(real);
    case Kind::kText:
      return "\"" + Shortened(text) + "\"";
    case Kind::kObject:
      return "an object";
    case Kind::kList:
      return "a list";
  }
  return "";
}

JsonFields::JsonFields(const JsonNode& object, std::string place)
    : object_(object), place_(std::move(place)), taken_(object.keys.size()) {
  if (object.kind != JsonNode::Kind::kObject) {
    problem_ = place_ + " is " + object.Shown() + ", expected an object";
  }
}

const JsonNode* JsonFields::Find(const char* name) const {
  for (size_t i = 0; i < object_.keys.size(); ++i) {
    if (object_.keys[i] == name) return &object_.items[i];
  }
  return nullptr;
}

const JsonNode* JsonFields::Take(const char* name) {
  const JsonNode* node = Find(name);
  if (node != nullptr) taken_[static_cast<size_t>(node - object_.items.data())] = true;
  return node;
}

void JsonFields::Refuse(const char* name, const std::string& why) {
  if (!problem_.empty()) return;
  const JsonNode* node = Find(name);
  problem_ = PlaceOf(name) + " is " + (node == nullptr ? "missing" : node->Shown()) + ": " + why;
}

const JsonNode& JsonFields::Need(const char* name, JsonNode::Kind kind, const char* what) {
  static const JsonNode none;
  const JsonNode* node = Take(name);
  if (node == nullptr || node->kind != kind) {
    Refuse(name, std::string("expected ") + what);
    return none;
  }
  return *node;
}

std::string JsonFields::Text(const char* name) {
  return Need(name, JsonNode::Kind::kText, "a string").text;
}
int64_t JsonFields::Integer(const char* name) {
  return Need(name, JsonNode::Kind::kInteger, "a whole number").integer;
}
bool JsonFields::Boolean(const char* name) {
  return Need(name, JsonNode::Kind::kBoolean, "true or false").boolean;
}
const JsonNode& JsonFields::Object(const char* name) {
  return Need(name, JsonNode::Kind::kObject, "an object");
}
const std::vector<JsonNode>& JsonFields::List(const char* name) {
  return Need(name, JsonNode::Kind::kList, "a list").items;
}

const JsonNode* JsonFields::Optional(const char* name) {
  const JsonNode* node = Take(name);
  return node == nullptr || node->kind == JsonNode::Kind::kNull ? nullptr : node;
}

bool JsonFields::BooleanOr(const char* name, bool value) {
  return Has(name) ? Boolean(name) : value;
}

void JsonFields::ExpectOneOf(const char* name, std::initializer_list<const char*> allowed) {
  const JsonNode* node = Take(name);
  if (node == nullptr) return;
  const std::string shown = node->Shown();
  std::string list;
  for (const char* value : allowed) {
    if (shown == value) return;
    list += (list.empty() ? "" : " or ") + std::string(value);
  }
  Refuse(name, "Apogee does only " + list);
}

absl::Status JsonFields::Finish() const {
  if (!problem_.empty()) return InvalidArgument(problem_);
  for (size_t i = 0; i < taken_.size(); ++i) {
    if (!taken_[i]) {
      return InvalidArgument(place_, ".", Shortened(object_.keys[i]), " (",
                             object_.items[i].Shown(), ") is a field that Apogee does not know");
    }
  }
  return absl::OkStatus();
}

}  // namespace apogee::data
