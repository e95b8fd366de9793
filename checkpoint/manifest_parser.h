// The events of nlohmann::json::sax_parse that make a Manifest; only manifest.cc needs it. A
// handler that returns false stops the parse; `problem` then says why.
#ifndef APOGEE_CHECKPOINT_MANIFEST_PARSER_H_
#define APOGEE_CHECKPOINT_MANIFEST_PARSER_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "apogee/checkpoint/manifest.h"

namespace apogee::checkpoint {

class ManifestParser {
 public:
  using number_integer_t = int64_t;
  using number_unsigned_t = uint64_t;
  using number_float_t = double;
  using string_t = std::string;
  using binary_t = nlohmann::json::binary_t;

  Manifest manifest;
  std::string problem;
  std::optional<uint64_t> newer_version;

  bool null() { return Fail("null is not allowed"); }
  bool boolean(bool) { return Fail("a boolean is not allowed"); }
  bool number_integer(number_integer_t) { return Fail("a negative number is not allowed"); }
  bool number_float(number_float_t, const string_t&) {
    return Fail("a number that is not a whole one, or too large, is not allowed");
  }
  bool binary(binary_t&) { return Fail("binary data is not allowed"); }
  bool number_unsigned(number_unsigned_t value);
  bool string(string_t& value);
  bool start_object(std::size_t);
  bool key(string_t& value);
  bool end_object();
  bool start_array(std::size_t);
  bool end_array();
  bool parse_error(std::size_t byte, const std::string&, const nlohmann::json::exception&);

 private:
  enum class Place {
    kStart,
    kTop,
    kAttributes,
    kFiles,
    kTensors,
    kTensor,
    kShape,
    kSlices,
    kSlice,
    kRuns,
    kEnd
  };
  bool TakeField(const std::string& value, const std::set<std::string>& known);
  bool Fail(const std::string& what);

  Place place_ = Place::kStart;
  std::string field_;               // of the object that the parser is in
  std::string tensor_;              // name
  std::set<std::string> seen_;      // fields of the top, tensor or slice object
  std::set<std::string> seen_top_;  // while inside of others
  std::set<std::string> seen_tensor_;
  std::vector<int64_t> numbers_;
  LogicalTensor entry_;
  Slice slice_;
};

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_MANIFEST_PARSER_H_
