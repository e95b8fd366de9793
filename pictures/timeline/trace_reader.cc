// SPDX-License-Identifier: Apache-2.0

#include "apogee/pictures/timeline/trace_reader.h"

#include <array>
#include <cmath>

#include "apogee/core/text/json_reader.h"

namespace apogee {
namespace {

enum Field { kPh, kCat, kPid, kTs, kDur, kKind, kStep, kMicroBatch, kChunk, kNumFields };
constexpr std::array<const char*, kNumFields> kNames = {
    "ph", "cat", "pid", "ts", "dur", "kind", "step", "micro_batch", "chunk"};
constexpr Field kFirstArg = kKind;
// Below 2^53, so integers are exact; and ends, in microseconds, fit into 64 bits as nanoseconds.
constexpr double kMaxNumber = 4e15;
constexpr double kMaxRank = 1e6;

// The value of an event's field.
struct Value {
  enum class Type { kMissing, kText, kWhole, kReal, kOther } type = Type::kMissing;
  std::string text;
  double number = 0;
};

class TraceHandler final : public JsonHandler {
 public:
  bool Null() override { return Scalar(Value::Type::kOther); }
  bool Boolean(bool) override { return Scalar(Value::Type::kOther); }
  bool Negative(int64_t value) override {
    return Scalar(Value::Type::kWhole, static_cast<double>(value));
  }
  bool Unsigned(uint64_t value) override {
    return Scalar(Value::Type::kWhole, static_cast<double>(value));
  }
  bool Real(double value) override { return Scalar(Value::Type::kReal, value); }
  bool String(std::string& text) override {
    if (!Scalar(Value::Type::kText)) return false;
    // No text that matters is longer.
    if (Value* field = Current(); field != nullptr && text.size() < 16) field->text = text;
    return true;
  }
  bool StartObject() override {
    if (events_depth_ == depth_) event_ = {};
    if (depth_ == 0) return ++depth_ > 0;
    return Open();
  }
  bool StartList() override {
    if (depth_ == 0 || (depth_ == 1 && in_events_ && events_depth_ < 0)) {
      events_depth_ = ++depth_;
      return true;
    }
    if (depth_ == events_depth_) return Fail("an event must be an object");
    return Open();
  }
  bool EndObject() override { return --depth_ != events_depth_ || EndEvent(); }
  bool EndList() override {
    // There is one list of events; later keys of the enclosing object are ignored.
    if (depth_-- == events_depth_) events_depth_ = kEnded;
    return true;
  }
  bool Key(std::string& key) override {
    if (events_depth_ == kNone && depth_ == 1) in_events_ = key == "traceEvents";
    if (events_depth_ == kEnded && key == "traceEvents" && depth_ == 1) {
      return Fail("\"traceEvents\" is given twice");
    }
    field_ = kNumFields;
    if (depth_ == events_depth_ + 1) {
      in_args_ = key == "args";
      if (in_args_ && has_args_) return Fail("\"args\" is given twice in an event");
      has_args_ = has_args_ || in_args_;
    }
    const bool is_field = depth_ == events_depth_ + 1;
    const bool is_arg = depth_ == events_depth_ + 2 && in_args_;
    if (events_depth_ < 0 || (!is_field && !is_arg)) return true;
    for (int f = is_arg ? kFirstArg : kPh; f < (is_arg ? kNumFields : kFirstArg); ++f) {
      if (key != kNames[static_cast<size_t>(f)]) continue;
      field_ = static_cast<Field>(f);
      if (event_[field_].type != Value::Type::kMissing) {
        return Fail("\"" + key + "\" is given twice in an event");
      }
    }
    return true;
  }

  bool has_events() const { return events_depth_ == kEnded; }
  std::vector<PipelineEvent> events;
  std::string problem;

 private:
  static constexpr int kNone = -10, kEnded = -20;  // never 1 or 2 below a depth

  bool Fail(const std::string& what) {
    problem = what;
    return false;
  }
  Value* Current() { return field_ == kNumFields ? nullptr : &event_[field_]; }
  bool Scalar(Value::Type type, double number = 0) {
    if (depth_ == 0) return Fail("a trace must be an object or a list");
    if (depth_ == events_depth_) return Fail("an event must be an object");
    if (depth_ == 1 && in_events_ && events_depth_ == kNone) {
      return Fail("\"traceEvents\" must be a list");
    }
    if (Value* field = Current()) *field = {type, "", number};
    return true;
  }
  bool Open() {
    if (depth_ == 1 && in_events_ && events_depth_ == kNone) {
      return Fail("\"traceEvents\" must be a list");
    }
    if (Value* field = Current()) field->type = Value::Type::kOther;
    field_ = kNumFields;
    ++depth_;
    return true;
  }

  // Reads a number of the event; false, with a problem, if the event lacks it.
  bool Take(Field field, double max, double& to) {
    const Value& value = event_[field];
    const std::string name =
        std::string("a pipeline event: ") + (field < kFirstArg ? "" : "args.") + kNames[field];
    if (value.type == Value::Type::kMissing) return Fail(name + " is missing");
    const bool time = field == kTs || field == kDur;
    const bool number =
        value.type == Value::Type::kWhole || (time && value.type == Value::Type::kReal);
    if (!number || !(value.number >= 0 && value.number <= max)) {
      return Fail(name + " must be a " + (time ? "" : "whole ") + "number from 0 to " +
                  internal::Concat(max));
    }
    to = value.number;
    return true;
  }

  bool EndEvent() {
    has_args_ = in_args_ = false;
    field_ = kNumFields;
    const std::string& kind = event_[kKind].text;
    if (event_[kCat].text != kPipelineCategory || event_[kPh].text != "X") return true;
    if (kind != "F" && kind != "B" && kind != "W") return true;
    std::array<double, kNumFields> numbers{};
    for (const Field field : {kPid, kTs, kDur, kStep, kMicroBatch, kChunk}) {
      if (!Take(field, field == kPid ? kMaxRank : kMaxNumber, numbers[field])) return false;
    }
    const auto whole = [&](Field field) { return static_cast<int64_t>(numbers[field]); };
    const auto ns = [&](Field field) { return std::llround(numbers[field] * 1000); };
    events.push_back({.step = whole(kStep),
                      .rank = static_cast<int>(whole(kPid)),
                      .kind = static_cast<PipelineKind>(kind[0]),
                      .micro_batch = whole(kMicroBatch),
                      .chunk = whole(kChunk),
                      .begin_ns = ns(kTs),
                      .end_ns = ns(kTs) + ns(kDur)});
    return true;
  }

  int depth_ = 0;
  int events_depth_ = kNone;  // the depth inside the list of events
  bool in_events_ = false;    // the next value is that of "traceEvents"
  bool has_args_ = false, in_args_ = false;
  Field field_ = kNumFields;
  std::array<Value, kNumFields> event_;
};

}  // namespace

absl::StatusOr<std::vector<PipelineEvent>> ReadPipelineEvents(const std::string& text,
                                                              const std::string& path) {
  TraceHandler handler;
  JsonReader reader(text);
  if (!reader.Read(handler)) {
    return DataLoss(path, ": byte ", reader.byte(), ": ",
                    reader.problem().empty() ? handler.problem : reader.problem());
  }
  if (!handler.has_events()) return DataLoss(path, ": there is no list \"traceEvents\"");
  return std::move(handler.events);
}

}  // namespace apogee
