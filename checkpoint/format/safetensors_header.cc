// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/format/safetensors_header.h"

#include <algorithm>
#include <limits>

#include "apogee/core/text/json_reader.h"

namespace apogee::checkpoint {
namespace {

using internal::Concat;

// Handles the parser's events as a state machine.
class HeaderHandler : public JsonHandler {
 public:
  explicit HeaderHandler(size_t text_bytes) : budget_(text_bytes) {}

  SafetensorsHeader header;
  std::string problem;

  bool Null() override { return Unexpected("null"); }
  bool Boolean(bool) override { return Unexpected("a boolean"); }
  bool Negative(int64_t) override { return Unexpected("a negative number"); }
  bool Real(double) override {
    return Unexpected("a number that is not a whole one, or too large,");
  }

  bool Unsigned(uint64_t value) override {
    if (place_ != Place::kNumbers) return Unexpected("a number");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Fail(Concat(field_, " of tensor \"", name_, "\" has a number above 2^63"));
    }
    if (numbers_.size() >= kMaxRank) {
      return Fail(
          Concat(field_, " of tensor \"", name_, "\" has more than ", kMaxRank, " numbers"));
    }
    numbers_.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool String(std::string& value) override {
    if (place_ == Place::kMetadata) {
      if (!budget_.TakeText(value)) return OutOfBudget();
      *metadata_ = std::move(value);
      return true;
    }
    if (place_ != Place::kTensor || field_ != "dtype") return Unexpected("a string");
    if (SafetensorsDTypeSize(value) == 0) {
      return Fail(
          Concat("tensor \"", name_, "\" has the unknown dtype \"", Shortened(value), "\""));
    }
    entry_.dtype = value;
    return true;
  }

  bool StartObject() override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop) return Unexpected("an object");
    place_ = name_ == "__metadata__" ? Place::kMetadata : Place::kTensor;
    return true;
  }

  bool Key(std::string& value) override {
    if (place_ == Place::kTop) return TopKey(value);
    if (place_ == Place::kMetadata) {
      if (!budget_.TakeText(value) || !budget_.Take(kMetadataBytes)) return OutOfBudget();
      field_ = Shortened(value);
      const auto [place, added] = header.metadata.try_emplace(std::move(value));
      if (!added) return Fail(Concat("metadata \"", field_, "\" is given twice"));
      metadata_ = &place->second;
      return true;
    } else {
      if (value != "dtype" && value != "shape" && value != "data_offsets") {
        return Fail(
            Concat("tensor \"", name_, "\" has the unknown field \"", Shortened(value), "\""));
      }
      if (std::ranges::find(fields_, value) != fields_.end()) {
        return Fail(Concat("tensor \"", name_, "\" has the field \"", value, "\" twice"));
      }
      fields_.push_back(value);
    }
    field_ = value;
    return true;
  }

  bool EndObject() override {
    if (place_ == Place::kTensor) {
      if (fields_.size() != 3) {
        return Fail(Concat("tensor \"", name_, "\" needs dtype, shape and data_offsets"));
      }
      const size_t shape_bytes = entry_.shape.size() * sizeof(int64_t);
      if (!budget_.TakeText(name_) || !budget_.Take(kEntryBytes + shape_bytes)) {
        return OutOfBudget();
      }
      header.entries[name_] = std::move(entry_);
    }
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }

  bool StartList() override {
    if (place_ != Place::kTensor || field_ == "dtype") return Unexpected("a list");
    place_ = Place::kNumbers;
    numbers_.clear();
    return true;
  }

  bool EndList() override {
    place_ = Place::kTensor;
    if (field_ == "shape") {
      entry_.shape = numbers_;
    } else if (numbers_.size() != 2 || numbers_[0] > numbers_[1]) {
      return Fail(
          Concat("data_offsets of tensor \"", name_, "\" must be two numbers, begin <= end"));
    } else {
      entry_.begin = numbers_[0];
      entry_.end = numbers_[1];
    }
    return true;
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kNumbers, kEnd };
  static constexpr size_t kMetadataBytes = kMapNodeBytes + 2 * sizeof(std::string);
  // A map node, and a pointer to it while places are checked.
  static constexpr size_t kEntryBytes =
      kMapNodeBytes + sizeof(std::string) + sizeof(SafetensorsEntry) + sizeof(void*);

  bool TopKey(const std::string& value) {
    if (value.empty() || value.size() > kMaxNameBytes || value.find('\0') != std::string::npos) {
      return Fail(Concat("a tensor name is empty, has a NUL or is over ", kMaxNameBytes, " bytes"));
    }
    if (value == "__metadata__" ? seen_metadata_ : header.entries.contains(value)) {
      return Fail(Concat("\"", value, "\" is given twice"));
    }
    seen_metadata_ = seen_metadata_ || value == "__metadata__";
    if (header.entries.size() >= kMaxTensors) {
      return Fail(Concat("more than ", kMaxTensors, " tensors"));
    }
    name_ = value;
    entry_ = {};
    fields_.clear();
    field_.clear();
    return true;
  }

  bool OutOfBudget() { return Fail("too many tiny entries for its size"); }
  bool Unexpected(const char* what) {
    switch (place_) {
      case Place::kMetadata:
        return Fail(Concat("metadata \"", field_, "\" must be a string, got ", what));
      case Place::kTensor:
      case Place::kNumbers:
        return Fail(Concat(what, " is not allowed in ", field_, " of tensor \"", name_, "\""));
      case Place::kTop:
        return Fail(Concat("\"", name_, "\" must be an object, got ", what));
      default:
        return Fail(Concat("the header must be one object, got ", what));
    }
  }
  bool Fail(const std::string& what) {
    problem = what;
    return false;
  }

  Place place_ = Place::kStart;
  std::string name_, field_;
  std::vector<std::string> fields_;
  std::vector<int64_t> numbers_;
  SafetensorsEntry entry_;
  std::string* metadata_ = nullptr;  // the value of the current key
  ParseBudget budget_;
  bool seen_metadata_ = false;
};

// Returns "", or what is wrong with the places of the tensors: they must tile the data exactly.
std::string CheckPlaces(const SafetensorsHeader& header, int64_t data_bytes) {
  std::vector<const std::pair<const std::string, SafetensorsEntry>*> sorted;
  sorted.reserve(header.entries.size());
  for (const auto& item : header.entries) {
    int64_t bytes = SafetensorsDTypeSize(item.second.dtype);
    for (const int64_t size : item.second.shape) {
      if (__builtin_mul_overflow(bytes, size, &bytes)) {
        return Concat("the size of tensor \"", item.first, "\" overflows");
      }
    }
    if (bytes != item.second.end - item.second.begin) {
      return Concat("tensor \"", item.first, "\" needs ", bytes, " bytes, data_offsets give ",
                    item.second.end - item.second.begin);
    }
    sorted.push_back(&item);
  }
  std::ranges::sort(sorted, [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  int64_t next = 0;
  for (const auto* item : sorted) {
    if (item->second.begin != next) {
      return Concat("tensor \"", item->first, "\" begins at data byte ", item->second.begin,
                    item->second.begin < next ? ", inside the one before it" : ", after a hole",
                    "; expected ", next);
    }
    next = item->second.end;
  }
  if (next != data_bytes) {
    return Concat("the tensors take ", next, " bytes, the file has ", data_bytes,
                  next > data_bytes ? " (cut short?)" : " (trailing bytes)");
  }
  return "";
}

}  // namespace

int64_t SafetensorsDTypeSize(const std::string& dtype) {
  static const auto& sizes = *new std::map<std::string, int64_t>{
      {"F64", 8}, {"I64", 8}, {"U64", 8},     {"F32", 4},     {"I32", 4},
      {"U32", 4}, {"F16", 2}, {"BF16", 2},    {"I16", 2},     {"U16", 2},
      {"I8", 1},  {"U8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"BOOL", 1}};
  const auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(const std::string& json,
                                                         const HeaderSource& source) {
  const size_t last = json.find_last_not_of(' ');
  if (json.empty() || json.front() != '{' || json[last] != '}') {
    return DataLoss(source.path, ": byte 8: the header must be one JSON object, then spaces only");
  }
  HeaderHandler handler(json.size());
  JsonReader reader(json);
  if (!reader.Read(handler)) {
    return DataLoss(source.path, ": byte ", 8 + reader.byte(), ": ",
                    reader.problem().empty() ? handler.problem : reader.problem());
  }
  const std::string places = CheckPlaces(handler.header, source.data_bytes);
  if (!places.empty()) return DataLoss(source.path, ": ", places);
  return std::move(handler.header);
}

}  // namespace apogee::checkpoint
