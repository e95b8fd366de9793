// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/hf/hf_config_dtype.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "apogee/core/text/json_reader.h"

namespace apogee::checkpoint {
namespace {

// The places of the values of the two fields.
class DTypeFinder : public JsonHandler {
 public:
  // `text` must outlive it.
  explicit DTypeFinder(const std::string& text) : text_(text), reader_(text) {}

  bool Find() { return reader_.Read(*this); }
  // Begin and end, in the order of the text.
  const std::vector<std::pair<size_t, size_t>>& places() const { return places_; }

  bool Null() override { return Value(); }
  bool Boolean(bool) override { return Value(); }
  bool Negative(int64_t) override { return Value(); }
  bool Unsigned(uint64_t) override { return Value(); }
  bool Real(double) override { return Value(); }
  bool String(std::string&) override { return Value(); }
  bool StartObject() override { return ++depth_ > 0; }
  bool Key(std::string& key) override {
    is_dtype_ = depth_ == 1 && (key == "dtype" || key == "torch_dtype");
    key_end_ = reader_.byte();
    return true;
  }
  bool EndObject() override { return Close(); }
  bool StartList() override { return ++depth_ > 1; }  // the text is no list
  bool EndList() override { return Close(); }

 private:
  // A scalar value that ends here.
  bool Value() {
    if (!is_dtype_ || depth_ != 1) return true;
    const size_t begin = text_.find_first_not_of(" \t\r\n", text_.find(':', key_end_) + 1);
    places_.emplace_back(begin, reader_.byte());
    return true;
  }
  bool Close() {
    --depth_;
    return true;
  }

  const std::string& text_;
  JsonReader reader_;
  int depth_ = 0;
  bool is_dtype_ = false;  // of the last key
  size_t key_end_ = 0;
  std::vector<std::pair<size_t, size_t>> places_;
};

// The name in the library of the narrowest dtype that holds them all; "" if none is floating.
std::string WidestName(const std::set<std::string>& dtypes) {
  const bool f16 = dtypes.contains("F16"), bf16 = dtypes.contains("BF16");
  if (dtypes.contains("F64")) return "float64";
  if (dtypes.contains("F32") || (f16 && bf16)) return "float32";
  return f16 ? "float16" : bf16 ? "bfloat16" : "";
}

}  // namespace

std::string WithDType(const std::string& config_json, const std::set<std::string>& dtypes) {
  const std::string name = WidestName(dtypes);
  DTypeFinder finder(config_json);
  if (name.empty() || !finder.Find()) return config_json;
  std::string text = config_json;
  for (auto place = finder.places().rbegin(); place != finder.places().rend(); ++place) {
    text.replace(place->first, place->second - place->first, "\"" + name + "\"");
  }
  return text;
}

}  // namespace apogee::checkpoint
