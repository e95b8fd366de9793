// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/hf/hf_index.h"

#include <nlohmann/json.hpp>
#include <set>

#include "apogee/checkpoint/names.h"
#include "apogee/core/text/json_reader.h"

namespace apogee::checkpoint {
namespace {

using internal::Concat;

class IndexParser : public JsonHandler {
 public:
  explicit IndexParser(size_t text_bytes) : budget_(text_bytes) {}

  HfIndex index;
  std::string problem;

  bool Null() override { return Scalar("null"); }
  bool Boolean(bool) override { return Scalar("a boolean"); }
  bool Negative(int64_t) override { return Scalar("a number"); }
  bool Unsigned(uint64_t) override { return Scalar("a number"); }
  bool Real(double) override { return Scalar("a number"); }

  bool String(std::string& value) override {
    if (place_ != Place::kWeightMap) return Scalar("a string");
    if (!IsPlainFileName(value)) {
      return Fail(Concat("\"", Shortened(value), "\" is not the name of a file in this folder"));
    }
    if (!budget_.TakeText(value)) return OutOfBudget();
    index.weight_map[key_] = value;
    return true;
  }

  bool StartObject() override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop) return Fail("an object is not allowed");
    place_ = key_ == "metadata" ? Place::kMetadata : Place::kWeightMap;
    return true;
  }

  bool Key(std::string& value) override {
    key_ = Shortened(value);
    if (place_ == Place::kTop) {
      if (value != "metadata" && value != "weight_map") return Fail("is an unknown field");
      return top_.insert(value).second || Fail("is given twice");
    }
    if (place_ == Place::kMetadata) {
      if (!budget_.TakeText(value) || !budget_.Take(kMapNodeBytes + sizeof(value))) {
        return OutOfBudget();
      }
      return metadata_.insert(value).second || Fail("is given twice");
    }
    if (!IsTensorName(value)) return Fail("a tensor name is empty, has a NUL or is too long");
    if (index.weight_map.size() >= kMaxTensors) return Fail("too many tensors");
    if (!budget_.TakeText(value) || !budget_.Take(kMapNodeBytes + 2 * sizeof(value))) {
      return OutOfBudget();
    }
    key_ = value;  // at most kMaxNameBytes
    return index.weight_map.emplace(value, "").second || Fail("is given twice");
  }

  bool EndObject() override {
    key_.clear();
    if (place_ != Place::kTop) {
      place_ = Place::kTop;
      return true;
    }
    place_ = Place::kEnd;
    return top_.contains("weight_map") || Fail("needs the field \"weight_map\"");
  }

  bool StartList() override { return Fail("a list is not allowed"); }
  bool EndList() override { return Fail("a list is not allowed"); }

 private:
  enum class Place { kStart, kTop, kMetadata, kWeightMap, kEnd };

  bool OutOfBudget() { return Fail("too many tiny entries for the size of the text"); }
  bool Scalar(const char* what) {
    return place_ == Place::kMetadata || Fail(Concat(what, " is not allowed"));
  }
  bool Fail(const std::string& what) {
    problem = key_.empty() ? what : Concat("\"", key_, "\": ", what);
    return false;
  }

  Place place_ = Place::kStart;
  std::string key_;
  std::set<std::string> top_, metadata_;
  ParseBudget budget_;
};

}  // namespace

absl::StatusOr<HfIndex> ParseHfIndex(const std::string& json, const std::string& path) {
  IndexParser parser(json.size());
  JsonReader reader(json);
  if (!reader.Read(parser)) {
    return DataLoss(path, ": byte ", reader.byte(), ": ",
                    reader.problem().empty() ? parser.problem : reader.problem());
  }
  return std::move(parser.index);
}

std::string FormatHfIndex(const HfIndex& index, int64_t total_size) {
  nlohmann::ordered_json json;
  json["metadata"] = {{"total_size", total_size}};
  json["weight_map"] = index.weight_map;
  return json.dump(2) + "\n";
}

}  // namespace apogee::checkpoint
