// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/format/manifest_parser.h"

#include <limits>
#include <utility>

#include "apogee/checkpoint/format/safetensors_header.h"
#include "apogee/checkpoint/names.h"

namespace apogee::checkpoint {
namespace {

using internal::Concat;

constexpr size_t kMaxAttributes = 1'000'000;
constexpr size_t kMaxFiles = 1'000'000;
constexpr size_t kMaxSlices = 1'000'000;
constexpr size_t kFileBytes = kMapNodeBytes + sizeof(std::string) + sizeof(int64_t);
constexpr size_t kAttributeBytes = kMapNodeBytes + 2 * sizeof(std::string);
constexpr size_t kTensorBytes = kMapNodeBytes + sizeof(std::string) + sizeof(LogicalTensor);

// 16 hexadecimal digits per number.
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
  if (!known.contains(value)) return Fail(Concat("unknown field \"", Shortened(value), "\""));
  if (!seen_.insert(value).second) return Fail(Concat("field \"", value, "\" is given twice"));
  field_ = value;
  return true;
}

bool ManifestParser::Unsigned(uint64_t value) {
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
  if (place_ == Place::kRuns) return AddRunNumber(number);
  if (place_ != Place::kShape) return Fail("a number is not allowed");
  if (numbers_.size() >= kMaxRank) return Fail("too many numbers");
  numbers_.push_back(number);
  return true;
}

// Four numbers make a run.
bool ManifestParser::AddRunNumber(int64_t number) {
  numbers_.push_back(number);
  if (numbers_.size() < 4) return true;
  if (!budget.TakeElement(slice_.runs)) return OutOfBudget();
  slice_.runs.push_back({numbers_[0], numbers_[1], numbers_[2], numbers_[3]});
  numbers_.clear();
  return true;
}

bool ManifestParser::KeepTensor() {
  const size_t shape_bytes = entry_.shape.size() * sizeof(int64_t);
  if (!budget.TakeText(tensor_) || !budget.TakeText(entry_.dtype) ||
      !budget.Take(kTensorBytes + shape_bytes)) {
    return OutOfBudget();
  }
  manifest.tensors[tensor_] = std::move(entry_);
  return true;
}

bool ManifestParser::OutOfBudget() {
  return Fail("too many tiny entries for the size of the text");
}

bool ManifestParser::String(std::string& value) {
  if (place_ == Place::kAttributes) {
    if (!budget.TakeText(value)) return OutOfBudget();
    *attribute_ = std::move(value);
    return true;
  }
  if (place_ == Place::kTop && field_ == "digest") return true;  // ParseManifest checks it
  if (place_ == Place::kTensor && field_ == "dtype") {
    if (SafetensorsDTypeSize(value) == 0) {
      return Fail(Concat("unknown dtype \"", Shortened(value), "\""));
    }
    entry_.dtype = value;
    return true;
  }
  if (place_ == Place::kSlice && field_ == "file") {
    if (!IsPlainFileName(value)) return Fail("is not the name of a file in this folder");
    if (!budget.TakeText(value)) return OutOfBudget();
    slice_.file = value;
    return true;
  }
  if (place_ == Place::kSlice && field_ == "entry") {
    if (!IsTensorName(value)) return Fail("not a tensor name");
    if (!budget.TakeText(value)) return OutOfBudget();
    slice_.entry = value;
    return true;
  }
  if (place_ == Place::kSlice && field_ == "digests") {
    if (!budget.Take(value.size() / 2)) return OutOfBudget();
    auto digests = FromHex(value);
    if (!digests) return Fail("digests must be 16 hexadecimal digits each");
    slice_.digests = *std::move(digests);
    return true;
  }
  return Fail("a string is not allowed");
}

bool ManifestParser::StartObject() {
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

bool ManifestParser::AddAttribute(std::string& name) {
  field_ = Shortened(name);
  if (manifest.attributes.size() >= kMaxAttributes) return Fail("too many attributes");
  if (!budget.TakeText(name) || !budget.Take(kAttributeBytes)) return OutOfBudget();
  const auto [place, added] = manifest.attributes.try_emplace(std::move(name));
  attribute_ = &place->second;
  return added || Fail("is given twice");
}

bool ManifestParser::Key(std::string& value) {
  switch (place_) {
    case Place::kTop:
      return TakeField(value, {"apogee_checkpoint", "attributes", "files", "tensors", "digest"});
    case Place::kAttributes:
      return AddAttribute(value);
    case Place::kFiles:
      field_ = Shortened(value);
      if (!IsPlainFileName(value)) return Fail("is not the name of a file in this folder");
      if (manifest.files.size() >= kMaxFiles) return Fail("too many files");
      if (!budget.TakeText(value) || !budget.Take(kFileBytes)) return OutOfBudget();
      field_ = value;
      return manifest.files.emplace(value, 0).second || Fail("is given twice");
    case Place::kTensors:
      field_.clear();
      tensor_ = Shortened(value);
      if (!IsTensorName(value)) return Fail("a tensor name is empty, has a NUL or is too long");
      if (manifest.tensors.size() >= kMaxTensors) return Fail("too many tensors");
      tensor_ = value;
      return !manifest.tensors.contains(value) || Fail(Concat("\"", value, "\" is given twice"));
    case Place::kTensor:
      return TakeField(value, {"dtype", "shape", "slices"});
    case Place::kSlice:
      return TakeField(value, {"file", "entry", "runs", "digests"});
    default:
      return Fail("a field is not allowed");
  }
}

bool ManifestParser::EndObject() {
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
      if (!KeepTensor()) return false;
      seen_ = std::exchange(seen_top_, {});
      place_ = Place::kTensors;
      return true;
    case Place::kSlice:
      if (seen_.size() != 4) return Fail("a slice needs file, entry, runs and digests");
      if (!budget.TakeElement(entry_.slices)) return OutOfBudget();
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

bool ManifestParser::StartList() {
  const bool shape = place_ == Place::kTensor && field_ == "shape";
  const bool slices = place_ == Place::kTensor && field_ == "slices";
  const bool runs = place_ == Place::kSlice && field_ == "runs";
  if (!shape && !slices && !runs) return Fail("a list is not allowed");
  place_ = shape ? Place::kShape : (slices ? Place::kSlices : Place::kRuns);
  numbers_.clear();
  return true;
}

bool ManifestParser::EndList() {
  if (place_ == Place::kSlices || place_ == Place::kShape) {
    if (place_ == Place::kShape) entry_.shape = numbers_;
    place_ = Place::kTensor;
    return true;
  }
  if (!numbers_.empty()) return Fail("runs are four numbers each");
  place_ = Place::kSlice;
  return true;
}

}  // namespace apogee::checkpoint
