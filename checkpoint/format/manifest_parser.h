// SPDX-License-Identifier: Apache-2.0

// ManifestParser: handles the parser events that make a Manifest. Only manifest.cc needs it. After
// an event that returned false, `problem` says why.
#ifndef APOGEE_CHECKPOINT_FORMAT_MANIFEST_PARSER_H_
#define APOGEE_CHECKPOINT_FORMAT_MANIFEST_PARSER_H_

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "apogee/checkpoint/format/manifest.h"
#include "apogee/core/text/json_reader.h"

namespace apogee::checkpoint {

class ManifestParser : public JsonHandler {
 public:
  explicit ManifestParser(size_t text_bytes) : budget(text_bytes) {}

  Manifest manifest;
  std::string problem;
  std::optional<uint64_t> newer_version;
  ParseBudget budget;  // memory left for the manifest

  bool Null() override { return Fail("null is not allowed"); }
  bool Boolean(bool) override { return Fail("a boolean is not allowed"); }
  bool Negative(int64_t) override { return Fail("a negative number is not allowed"); }
  bool Real(double) override {
    return Fail("a number that is not a whole one, or too large, is not allowed");
  }
  bool Unsigned(uint64_t value) override;
  bool String(std::string& value) override;
  bool StartObject() override;
  bool Key(std::string& value) override;
  bool EndObject() override;
  bool StartList() override;
  bool EndList() override;

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
  bool AddAttribute(std::string& name);
  bool AddRunNumber(int64_t number);
  bool KeepTensor();
  bool Fail(const std::string& what);
  bool OutOfBudget();

  Place place_ = Place::kStart;
  std::string field_;               // in the current object
  std::string tensor_;              // name
  std::set<std::string> seen_;      // fields of the top, tensor or slice object
  std::set<std::string> seen_top_;  // of the top, while in an inner object
  std::set<std::string> seen_tensor_;
  std::vector<int64_t> numbers_;      // of the current shape or run
  std::string* attribute_ = nullptr;  // the value of the current attribute
  LogicalTensor entry_;
  Slice slice_;
};

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_FORMAT_MANIFEST_PARSER_H_
