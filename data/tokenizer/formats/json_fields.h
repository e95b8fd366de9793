// SPDX-License-Identifier: Apache-2.0

// JsonNode: a small part of a JSON text as a tree. JsonFields: reads the fields of an object, and
// refuses those that nobody asked for.
//
//   JsonFields fields(node, "decoder");
//   const std::string type = fields.Text("type");
//   fields.ExpectOneOf("add_prefix_space", {"true", "false"});   // it has no effect here
//   APOGEE_RETURN_IF_ERROR(fields.Finish());          // the first error of all, or unknown fields
//
// Every error names the field and the value. After an error the getters return empty values.
#ifndef APOGEE_DATA_TOKENIZER_FORMATS_JSON_FIELDS_H_
#define APOGEE_DATA_TOKENIZER_FORMATS_JSON_FIELDS_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::data {

struct JsonNode {
  enum class Kind { kNull, kBoolean, kInteger, kReal, kText, kObject, kList };

  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;
  double real = 0;
  std::string text;
  std::vector<std::string> keys;  // of an object, one for each item
  std::vector<JsonNode> items;    // of an object or list

  // For messages: null, true, 12, "text", an object, a list.
  std::string Shown() const;
};

class JsonFields {
 public:
  // `place` names the object in messages.
  JsonFields(const JsonNode& object, std::string place);

  bool Has(const char* name) const { return Find(name) != nullptr; }
  // A field that must be there.
  std::string Text(const char* name);
  int64_t Integer(const char* name);
  bool Boolean(const char* name);
  const JsonNode& Object(const char* name);
  const std::vector<JsonNode>& List(const char* name);
  // nullptr if it is absent or null.
  const JsonNode* Optional(const char* name);
  // A field that may be absent.
  bool BooleanOr(const char* name, bool value);
  // The field may be absent. Else what it shows must be one of `allowed`.
  void ExpectOneOf(const char* name, std::initializer_list<const char*> allowed);
  // Records an error about the field.
  void Refuse(const char* name, const std::string& why);

  std::string PlaceOf(const char* name) const { return place_ + "." + name; }
  absl::Status Finish() const;

 private:
  const JsonNode* Find(const char* name) const;
  const JsonNode* Take(const char* name);
  const JsonNode& Need(const char* name, JsonNode::Kind kind, const char* what);

  const JsonNode& object_;
  std::string place_;
  std::vector<bool> taken_;
  std::string problem_;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_TOKENIZER_FORMATS_JSON_FIELDS_H_
