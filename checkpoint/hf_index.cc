#include "apogee/checkpoint/hf_index.h"

#include <nlohmann/json.hpp>
#include <set>

#include "apogee/checkpoint/names.h"

namespace apogee::checkpoint {
namespace {

using internal::Concat;

// The events of nlohmann::json::sax_parse. A handler that returns false stops the parse.
class IndexParser {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  HfIndex index;
  std::string problem;

  bool null() { return Scalar("null"); }
  bool boolean(bool) { return Scalar("a boolean"); }
  bool number_integer(number_integer_t) { return Scalar("a number"); }
  bool number_unsigned(number_unsigned_t) { return Scalar("a number"); }
  bool number_float(number_float_t, const string_t&) { return Scalar("a number"); }
  bool binary(binary_t&) { return Scalar("binary data"); }

  bool string(string_t& value) {
    if (place_ != Place::kWeightMap) return Scalar("a string");
    if (!IsPlainFileName(value)) {
      return Fail(Concat("\"", value, "\" is not the name of a file in this folder"));
    }
    index.weight_map[key_] = value;
    return true;
  }

  bool start_object(std::size_t) {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop) return Fail("an object is not allowed");
    place_ = key_ == "metadata" ? Place::kMetadata : Place::kWeightMap;
    return true;
  }

  bool key(string_t& value) {
    key_ = value;
    if (place_ == Place::kTop) {
      if (value != "metadata" && value != "weight_map") return Fail("is an unknown field");
      return top_.insert(value).second || Fail("is given twice");
    }
    if (place_ == Place::kMetadata) {
      return metadata_.insert(value).second || Fail("is given twice");
    }
    if (!IsTensorName(value)) return Fail("a tensor name is empty, has a NUL or is too long");
    if (index.weight_map.size() >= kMaxTensors) return Fail("too many tensors");
    return index.weight_map.emplace(value, "").second || Fail("is given twice");
  }

  bool end_object() {
    key_.clear();
    if (place_ != Place::kTop) {
      place_ = Place::kTop;
      return true;
    }
    place_ = Place::kEnd;
    return top_.contains("weight_map") || Fail("needs the field \"weight_map\"");
  }

  bool start_array(std::size_t) { return Fail("a list is not allowed"); }
  bool end_array() { return Fail("a list is not allowed"); }

  bool parse_error(std::size_t byte, const std::string&, const nlohmann::json::exception& error) {
    const std::string text = error.what();
    const size_t colon = text.find(": ");
    problem =
        Concat("byte ", byte,
               ": not valid JSON: ", colon == std::string::npos ? text : text.substr(colon + 2));
    return false;
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kWeightMap, kEnd };

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
};

}  // namespace

absl::StatusOr<HfIndex> ParseHfIndex(const std::string& json, const std::string& path) {
  IndexParser parser;
  if (!nlohmann::json::sax_parse(json, &parser)) return DataLoss(path, ": ", parser.problem);
  return std::move(parser.index);
}

std::string FormatHfIndex(const HfIndex& index, int64_t total_size) {
  nlohmann::ordered_json json;
  json["metadata"] = {{"total_size", total_size}};
  json["weight_map"] = index.weight_map;
  return json.dump(2) + "\n";
}

}  // namespace apogee::checkpoint
