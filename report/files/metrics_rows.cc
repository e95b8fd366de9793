// SPDX-License-Identifier: Apache-2.0

#include "apogee/report/files/metrics_rows.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "apogee/core/text/json_reader.h"

namespace apogee::report {
namespace {

constexpr int64_t kPieceBytes = int64_t{64} << 10;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Collects the fields of a row; other fields may hold anything.
class RowHandler final : public JsonHandler {
 public:
  bool Null() override { return Value(kNan, "null"); }
  bool Boolean(bool) override { return Other("a truth value"); }
  bool Negative(int64_t value) override {
    return Value(static_cast<double>(value), "a number below 0");
  }
  bool Real(double value) override { return Value(value, "no whole number"); }
  bool String(std::string&) override { return Other("a text"); }
  bool Unsigned(uint64_t value) override {
    if (depth_ != 1 || !is_step_) return Value(static_cast<double>(value), "");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Fail("\"step\" is a number above 2^63");
    }
    row.step = static_cast<int64_t>(value);
    return true;
  }
  bool StartObject() override {
    if (depth_ == 0 || (depth_ == 1 && in_memory_)) return ++depth_ > 0;
    return Open("an object");
  }
  bool StartList() override { return Open("a list"); }
  bool EndObject() override { return --depth_ >= 0; }
  bool EndList() override { return --depth_ >= 0; }
  bool Key(std::string& key) override {
    if (depth_ == 2 && in_memory_) {
      memory_key_ = key;
      return !row.memory.contains(key) || Fail("\"memory." + key + "\" is given twice");
    }
    if (depth_ != 1) return true;
    field_ = nullptr;
    is_step_ = key == "step";
    if (is_step_ && has_step) return Fail("\"step\" is given twice");
    has_step = has_step || is_step_;
    in_memory_ = key == "memory";
    if (in_memory_ && std::exchange(has_memory_, true)) return Fail("\"memory\" is given twice");
    return Find(key, kMetricsFields, row.values) && Find(key, kMeasuredFields, row.measured);
  }

  MetricsRow row;
  bool has_step = false;
  std::string problem;

 private:
  bool Fail(const std::string& what) {
    problem = what;
    return false;
  }
  // Lets field_ point to the value of `key`, if `names` have it.
  template <size_t kCount>
  bool Find(const std::string& key, const std::array<const char*, kCount>& names,
            std::array<std::optional<double>, kCount>& values) {
    for (size_t i = 0; i < kCount; ++i) {
      if (key != names[i]) continue;
      if (values[i]) return Fail("\"" + key + "\" is given twice");
      field_ = &values[i];
      name_ = names[i];
    }
    return true;
  }
  // `what` names the kind of value, for the message if it is in place of the step.
  bool Value(double value, const char* what) {
    if (depth_ == 0) return Fail("a row must be an object");
    if (depth_ == 2 && in_memory_) row.memory[memory_key_] = value;
    if (depth_ > 1) return true;
    if (is_step_) return Fail(std::string("\"step\" is ") + what);
    if (in_memory_) return Fail("\"memory\" is no object");
    if (field_ != nullptr) *field_ = value;
    return true;
  }
  bool Other(const char* what) {
    if (depth_ == 0) return Fail("a row must be an object");
    if (depth_ == 2 && in_memory_) return Fail("\"memory." + memory_key_ + "\" is " + what);
    if (depth_ > 1) return true;
    if (is_step_) return Fail(std::string("\"step\" is ") + what);
    if (in_memory_) return Fail(std::string("\"memory\" is ") + what);
    return field_ == nullptr || Fail(std::string("\"") + name_ + "\" is " + what);
  }
  bool Open(const char* what) {
    if (!Other(what)) return false;
    ++depth_;
    return true;
  }

  int depth_ = 0;
  bool is_step_ = false, in_memory_ = false, has_memory_ = false;
  std::optional<double>* field_ = nullptr;  // in the row; null: a field that is not read
  const char* name_ = "";                   // of field_
  std::string memory_key_;
};

}  // namespace

std::string FormatValue(const std::optional<double>& value) {
  if (!value) return "nothing";
  if (std::isnan(*value)) return "null";
  char text[40];
  return {text, std::to_chars(text, text + sizeof(text), *value).ptr};
}

bool SameValue(const std::optional<double>& a, const std::optional<double>& b) {
  if (!a || !b) return !a && !b;
  return *a == *b || (std::isnan(*a) && std::isnan(*b));
}

absl::StatusOr<MetricsRows> MetricsRows::Open(const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(auto file, checkpoint::RealFileSystem()->Open(path));
  return MetricsRows(std::move(file));
}

absl::Status MetricsRows::Damaged(const std::string& what) const {
  return DataLoss(file_->path(), ": line ", number_, ": ", what);
}

absl::Status MetricsRows::ReadLine() {
  line_.clear();
  ++number_;
  while (true) {
    if (at_ == piece_.size()) {
      const int64_t count = std::min(kPieceBytes, file_->size() - read_);
      // Rows are appended whole: a line without an end was cut off by a power failure or a full
      // disk.
      if (count == 0) return Damaged("it has no end; remove it, as a resumed run does");
      piece_.resize(static_cast<size_t>(count));
      APOGEE_RETURN_IF_ERROR(file_->Read(
          read_, std::as_writable_bytes(std::span<char>(piece_.data(), piece_.size()))));
      read_ += count;
      at_ = 0;
    }
    const size_t end = std::min(piece_.find('\n', at_), piece_.size());
    if (line_.size() + end - at_ > kMaxLineBytes) {
      return Damaged("is longer than " + std::to_string(kMaxLineBytes) + " bytes");
    }
    line_.append(piece_, at_, end - at_);
    at_ = end;
    if (at_ == piece_.size()) continue;
    ++at_;
    return absl::OkStatus();
  }
}

absl::StatusOr<std::optional<MetricsRow>> MetricsRows::ReadRow() {
  if (at_ == piece_.size() && read_ == file_->size()) return std::nullopt;
  APOGEE_RETURN_IF_ERROR(ReadLine());
  RowHandler handler;
  JsonReader reader(line_);
  if (!reader.Read(handler)) {
    return Damaged(reader.problem().empty()
                       ? handler.problem
                       : "byte " + std::to_string(reader.byte()) + ": " + reader.problem());
  }
  if (!handler.has_step) return Damaged("has no \"step\"");
  return handler.row;
}

absl::StatusOr<std::optional<MetricsRow>> MetricsRows::Next() {
  while (true) {
    APOGEE_ASSIGN_OR_RETURN(std::optional<MetricsRow> row, ReadRow());
    if (!row) return row;
    if (row->step > last_.step) {
      last_ = *row;
      return row;
    }
    const std::string step = "step " + std::to_string(row->step);
    if (row->step < last_.step) {
      return Damaged(step + " behind step " + std::to_string(last_.step) +
                     ": rows of two runs are mixed; remove those of one");
    }
    if (!std::ranges::equal(row->values, last_.values, SameValue)) {
      return Damaged(step +
                     " again, with other values: rows of two runs are mixed; remove those "
                     "of one");
    }
    if (++num_repeated_ == 1) first_repeated_ = row->step;
  }
}

}  // namespace apogee::report
