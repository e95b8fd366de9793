// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/quantized/quant_state.h"

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "apogee/core/shape.h"
#include "apogee/core/text/json_reader.h"

namespace apogee {
namespace {

using internal::Concat;

constexpr uint64_t kMaxSize = uint64_t{1} << 40;

// One object of scalars, in which "shape" is a list of sizes.
class StateHandler : public JsonHandler {
 public:
  std::string problem;
  std::map<std::string, std::string> texts;
  std::map<std::string, double> numbers;
  std::vector<int64_t> shape;
  bool has_shape = false;

  bool Null() override { return InObject(); }
  bool Boolean(bool) override { return InObject(); }
  bool Negative(int64_t value) override { return Real(static_cast<double>(value)); }
  bool Unsigned(uint64_t value) override {
    if (!in_list_) return Real(static_cast<double>(value));
    if (value > kMaxSize || shape.size() == Shape::kMaxRank) return Fail("is no shape of a weight");
    shape.push_back(static_cast<int64_t>(value));
    return true;
  }
  bool Real(double value) override {
    numbers[key_] = value;
    return InObject();
  }
  bool String(std::string& value) override {
    texts[key_] = value;
    return InObject();
  }
  bool StartObject() override {
    if (in_object_) return Fail("must not be an object");
    in_object_ = true;
    return true;
  }
  bool EndObject() override { return true; }
  bool Key(std::string& key) override {
    key_ = key;
    return keys_.insert(key).second || Fail("is given twice");
  }
  bool StartList() override {
    if (in_list_ || key_ != "shape") return Fail("must not be a list");
    return in_list_ = has_shape = true;
  }
  bool EndList() override {
    in_list_ = false;
    return true;
  }

 private:
  bool InObject() {
    if (!in_object_) return Fail("must be in an object");
    return !in_list_ || Fail("must have sizes only");
  }
  bool Fail(const char* why) {
    problem = Concat("\"", Shortened(key_), "\" ", why);
    return false;
  }

  bool in_object_ = false, in_list_ = false;
  std::string key_;
  std::set<std::string> keys_;
};

}  // namespace

absl::StatusOr<QuantState> ParseQuantState(const std::string& json, const std::string& place) {
  StateHandler handler;
  JsonReader reader(json);
  if (!reader.Read(handler)) {
    return DataLoss(place, ": byte ", reader.byte(), ": ",
                    reader.problem().empty() ? handler.problem : reader.problem());
  }
  const auto number = [&](const char* key) {
    const auto found = handler.numbers.find(key);
    return found == handler.numbers.end() ? std::nan("") : found->second;
  };
  const std::string& kind = handler.texts["quant_type"];
  if (kind != "nf4" || number("blocksize") != 64) {
    return InvalidArgument(place, ": only nf4 in blocks of 64 is read, and this is \"",
                           Shortened(kind), "\" in blocks of ", number("blocksize"));
  }
  if (!handler.has_shape) return DataLoss(place, " has no \"shape\"");
  QuantState state{.shape = std::move(handler.shape)};
  const double offset = number("nested_offset");
  state.nested = !std::isnan(offset);
  if (!state.nested) return state;
  if (number("nested_blocksize") != 256) {
    return InvalidArgument(place, ": only scales in blocks of 256 are read, and these are in ",
                           number("nested_blocksize"));
  }
  if (std::abs(offset) > std::numeric_limits<float>::max()) {
    return DataLoss(place, ": \"nested_offset\" is ", offset, ", which no scale is");
  }
  state.offset = static_cast<float>(offset);
  return state;
}

}  // namespace apogee
