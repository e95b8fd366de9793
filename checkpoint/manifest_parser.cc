#include "apogee/checkpoint/manifest_parser.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "apogee/checkpoint/names.h"
#include "apogee/checkpoint/safetensors_header.h"

namespace apogee::checkpoint {
namespace {

using internal::Concat;

constexpr size_t kMaxAttributes = 1'000'000;
constexpr size_t kMaxFiles = 1'000'000;
constexpr size_t kMaxSlices = 1'000'000;
constexpr size_t kMaxRunNumbers = size_t{1} << 26;

// Digits of 16 to a number.
std::optional<std::vector<uint64_t>> FromHex(const std::string& text) {
  if (text.size() % 16 != 0) return std::nullopt;
  std::vector<uint64_t> values(text.size() / 16);
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
    if (!digit && !letter) return std::nullopt;
    values[i / 16] = values[i / 16] << 4 | static_cast<uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return values;
}

}  // namespace

bool ManifestParser::Fail(const std::string& what) {
  std::string where;
  if (!tensor_.empty() && place_ >= Place::kTensor && place_ <= Place::kRuns) {
    where = Concat("tensor \"", tensor_, "\": ");
  }
  if (!field_.empty()) where += Concat("\"", field_, "\": ");
  problem = where + what;
  return false;
}

bool ManifestParser::TakeField(const std::string& value, const std::set<std::string>& known) {
  field_.clear();
  if (!known.contains(value)) return Fail(Concat("unknown field \"", value, "\""));
  if (!seen_.insert(value).second) return Fail(Concat("field \"", value, "\" is given twice"));
  field_ = value;
  return true;
}

bool ManifestParser::number_unsigned(number_unsigned_t value) {
  if (place_ == Place::kTop && field_ == "apogee_checkpoint") {
    if (value == static_cast<uint64_t>(kManifestVersion)) return true;
    if (value > static_cast<uint64_t>(kManifestVersion)) newer_version = value;
    return Fail(Concat("format version ", value, " is unknown"));
  }
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Fail("a number above 2^63");
  }
  const auto number = static_cast<int64_t>(value);
  if (place_ == Place::kFiles) {
    manifest.files[field_] = number;
    return true;
  }
  if (place_ != Place::kShape && place_ != Place::kRuns) return Fail("a number is not allowed");
  if (numbers_.size() >= (place_ == Place::kShape ? kMaxRank : kMaxRunNumbers)) {
    return Fail("too many numbers");
  }
  numbers_.push_back(number);
  return true;
}

bool ManifestParser::string(string_t& value) {
  if (place_ == Place::kAttributes) {
    manifest.attributes[field_] = value;
    return true;
  }
  if (place_ == Place::kTop && field_ == "digest") return true;  // of the text; see ParseManifest
  if (place_ == Place::kTensor && field_ == "dtype") {
    entry_.dtype = value;
    return true;
  }
  if (place_ == Place::kSlice && field_ == "file") {
    slice_.file = value;
    return true;
  }
  if (place_ == Place::kSlice && field_ == "entry") {
    if (!IsTensorName(value)) return Fail("not a tensor name");
    slice_.entry = value;
    return true;
  }
  if (place_ == Place::kSlice && field_ == "digests") {
    auto digests = FromHex(value);
    if (!digests) return Fail("digests must be 16 hexadecimal digits each");
    slice_.digests = *std::move(digests);
    return true;
  }
  return Fail("a string is not allowed");
}

bool ManifestParser::start_object(std::size_t) {
  switch (place_) {
    case Place::kStart:
      place_ = Place::kTop;
      return true;
    case Place::kTop:
      if (!seen_.contains("apogee_checkpoint")) {
        return Fail("the version, \"apogee_checkpoint\", must come first");
      }
      if (field_ != "attributes" && field_ != "files" && field_ != "tensors") break;
      place_ = field_ == "attributes" ? Place::kAttributes
                                      : (field_ == "files" ? Place::kFiles : Place::kTensors);
      return true;
    case Place::kTensors:
      place_ = Place::kTensor;
      entry_ = {};
      seen_top_ = std::exchange(seen_, {});
      return true;
    case Place::kSlices:
      if (entry_.slices.size() >= kMaxSlices) return Fail("too many slices");
      place_ = Place::kSlice;
      slice_ = {};
      seen_tensor_ = std::exchange(seen_, {});
      return true;
    default:
      break;
  }
  return Fail("an object is not allowed");
}

bool ManifestParser::key(string_t& value) {
  switch (place_) {
    case Place::kTop:
      return TakeField(value, {"apogee_checkpoint", "attributes", "files", "tensors", "digest"});
    case Place::kAttributes:
      field_ = value;
      if (manifest.attributes.size() >= kMaxAttributes) return Fail("too many attributes");
      return manifest.attributes.emplace(value, "").second || Fail("is given twice");
    case Place::kFiles:
      field_ = value;
      if (!IsPlainFileName(value)) return Fail("is not the name of a file in this folder");
      if (manifest.files.size() >= kMaxFiles) return Fail("too many files");
      return manifest.files.emplace(value, 0).second || Fail("is given twice");
    case Place::kTensors:
      tensor_ = value;
      field_.clear();
      if (!IsTensorName(value)) return Fail("a tensor name is empty, has a NUL or is too long");
      if (manifest.tensors.size() >= kMaxTensors) return Fail("too many tensors");
      return !manifest.tensors.contains(value) || Fail(Concat("\"", value, "\" is given twice"));
    case Place::kTensor:
      return TakeField(value, {"dtype", "shape", "slices"});
    case Place::kSlice:
      return TakeField(value, {"file", "entry", "runs", "digests"});
    default:
      return Fail("a field is not allowed");
  }
}

bool ManifestParser::end_object() {
  const Place closed = place_;
  field_.clear();
  switch (closed) {
    case Place::kTop:
      if (seen_.size() != 5) {
        return Fail("needs apogee_checkpoint, attributes, files, tensors and digest");
      }
      place_ = Place::kEnd;
      return true;
    case Place::kTensor:
      if (seen_.size() != 3) return Fail("needs dtype, shape and slices");
      manifest.tensors[tensor_] = std::move(entry_);
      seen_ = std::exchange(seen_top_, {});
      place_ = Place::kTensors;
      return true;
    case Place::kSlice:
      if (seen_.size() != 4) return Fail("a slice needs file, entry, runs and digests");
      entry_.slices.push_back(std::move(slice_));
      seen_ = std::exchange(seen_tensor_, {});
      place_ = Place::kSlices;
      return true;
    default:
      place_ = Place::kTop;
      tensor_.clear();
      return true;
  }
}

bool ManifestParser::start_array(std::size_t) {
  const bool shape = place_ == Place::kTensor && field_ == "shape";
  const bool slices = place_ == Place::kTensor && field_ == "slices";
  const bool runs = place_ == Place::kSlice && field_ == "runs";
  if (!shape && !slices && !runs) return Fail("a list is not allowed");
  place_ = shape ? Place::kShape : (slices ? Place::kSlices : Place::kRuns);
  numbers_.clear();
  return true;
}

bool ManifestParser::end_array() {
  if (place_ == Place::kSlices || place_ == Place::kShape) {
    if (place_ == Place::kShape) entry_.shape = numbers_;
    place_ = Place::kTensor;
    return true;
  }
  if (numbers_.size() % 4 != 0) return Fail("runs are four numbers each");
  for (size_t i = 0; i < numbers_.size(); i += 4) {
    slice_.runs.push_back({numbers_[i], numbers_[i + 1], numbers_[i + 2], numbers_[i + 3]});
  }
  place_ = Place::kSlice;
  return true;
}

bool ManifestParser::parse_error(std::size_t byte, const std::string&,
                                 const nlohmann::json::exception& error) {
  const std::string text = error.what();
  const size_t colon = text.find(": ");
  problem =
      Concat("byte ", byte,
             ": not valid JSON: ", colon == std::string::npos ? text : text.substr(colon + 2));
  return false;
}

}  // namespace apogee::checkpoint
