// SPDX-License-Identifier: Apache-2.0

// HfFields: the scalar fields of a config.json, read with checks; for the families.
//
//   APOGEE_ASSIGN_OR_RETURN(HfFields fields, HfFields::Parse(json, "dir/config.json"));
//   const int64_t width = fields.Size("n_embd", 768);
//   const double theta = fields.Number("rope_theta", 1e4, {.from = 1, .below = 1e15});
//   if (!fields.status().ok()) return fields.status();           // the first invalid field
//
// Fields of the objects "rope_parameters", "rope_scaling" and "quantization_config" have dotted
// names ("rope_parameters.rope_theta"); other nested objects are ignored. A missing field and null
// both give the default; only HasNull and Id tell them apart. Of lists, only those that a caller
// asks for are kept.
#ifndef APOGEE_NN_MODELS_HF_FIELDS_H_
#define APOGEE_NN_MODELS_HF_FIELDS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/nn/configured.h"

namespace apogee::nn {

struct HfValue {
  enum class Kind { kNull, kBool, kInteger, kReal, kString, kList, kObject };
  Kind kind = Kind::kNull;
  bool flag = false;
  int64_t integer = 0;
  double real = 0;  // of kInteger, too
  std::string text = {};
  // A kList that is kept: its values, each once; all of layer_types. A kObject's `integer` is the
  // number of its keys.
  std::vector<HfValue> list = {};

  bool operator==(const HfValue&) const = default;
};

// Numbers x with from <= x < below.
struct HfRange {
  double from = 0;
  double below = 0;
};

// For messages: a text in quotes, a list with its first values.
std::string DescribeValue(const HfValue& value);

class HfFields {
 public:
  // DataLoss if the text is not one JSON object of moderate size, or gives a key twice.
  static absl::StatusOr<HfFields> Parse(const std::string& json, const std::string& path);

  // An integer from `least` to 2^31 - 1.
  int64_t Size(const std::string& name, int64_t missing, int64_t least = 1);
  double Number(const std::string& name, double missing, const HfRange& range);
  bool Flag(const std::string& name, bool missing);
  bool Has(const std::string& name) const;
  bool Is(const std::string& name, const std::string& text) const;
  // The field is present and null.
  bool HasNull(const std::string& name) const;
  // The number of keys of an object; 0 for other values.
  int64_t CountKeys(const std::string& name) const;
  std::string Text(const std::string& name, const std::string& missing);
  // A list of texts; empty if there is none.
  std::vector<std::string> Texts(const std::string& name);
  // A list of integers from 0; empty if there is none.
  std::vector<int64_t> Integers(const std::string& name);
  // A token id; null says that there is none.
  std::optional<int64_t> Id(const std::string& name, std::optional<int64_t> missing);
  // Fields, with their values, that nothing has asked for and that may change the result.
  std::vector<std::string> Unread() const;
  // The token id fields that are present.
  TokenIds ReadTokenIds();
  // Lets `alias` stand for `name`; if both are present they must be equal.
  void AlsoAs(const std::string& name, const std::string& alias);

  // Records a problem unless the field is missing, null or equal to `value`.
  void MustBe(const std::string& name, bool value);
  void MustBe(const std::string& name, int64_t value);
  void MustBe(const std::string& name, const std::string& value);
  // Records a problem if the list `name` is present and does not contain `text` (MustList), or
  // contains anything else (MustListOnly).
  void MustList(const std::string& name, const std::string& text);
  void MustListOnly(const std::string& name, const std::string& text);
  void Refuse(const std::string& name, const std::string& why);

  // Ok, or the first problem.
  const absl::Status& status() const { return status_; }

 private:
  const HfValue* Find(const std::string& name) const;

  std::string path_;
  std::map<std::string, HfValue> values_;
  mutable std::set<std::string> read_;
  absl::Status status_;
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODELS_HF_FIELDS_H_
