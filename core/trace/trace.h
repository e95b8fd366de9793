// SPDX-License-Identifier: Apache-2.0

// Trace: records the work of every rank over time, as a file for ui.perfetto.dev or
// chrome://tracing.
//
//   Trace trace;                                      // shared by the ranks of a process
//   TraceLane* lane = trace.Lane(rank, "compute");
//   { TraceSpan span(lane, "load", {.category = "data", .args = {{"step", 3}}}); ... }
//   OkOrThrow(WriteTrace(trace, "run.json"));         // core/trace/trace_writer.h
//
// In the viewer a rank is a process and a lane is one of its rows. There is one lane per stream of
// work: "compute", "communication: [0 1]", "saver". Times are nanoseconds of the steady clock since
// the Trace was made. The file is one JSON object:
//   "traceEvents"  complete events (ph X; ts and dur in microseconds, three decimals; pid: the
//                  rank), and the names of ranks and lanes
//   "otherData"    the clock at ts 0, to align the files of several processes of one machine
//
// Without a trace, lanes are null and a span costs one test of the pointer. With a trace, a span
// costs 32 bytes, and 16 per argument: names, keys and texts are stored once per lane.
//
// Threads: all calls may come from any thread. Give each thread a lane of its own, because a lane
// shows one thing at a time. Events of a lane that overlap without nesting cannot be drawn by
// viewers; they are written to a further row, "NAME (2)".
#ifndef APOGEE_CORE_TRACE_TRACE_H_
#define APOGEE_CORE_TRACE_TRACE_H_

#include <chrono>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace apogee {

// {"micro_batch", 3}: a key with a number or a text. Refers to the caller's key and text, which
// must outlive it.
class TraceArg {
 public:
  template <std::integral T>
  TraceArg(std::string_view key, T value)
      : key_(key), kind_(Kind::kInteger), integer_(static_cast<int64_t>(value)) {}
  TraceArg(std::string_view key, double value) : key_(key), kind_(Kind::kReal), real_(value) {}
  TraceArg(std::string_view key, std::string_view value)
      : key_(key), kind_(Kind::kText), text_(value) {}

 private:
  friend class TraceLane;
  friend class TraceWriter;
  enum class Kind : uint8_t { kInteger, kReal, kText };

  std::string_view key_;
  Kind kind_;
  union {
    int64_t integer_;
    double real_;
    std::string_view text_;
  };
};

struct TraceInfo {
  std::string_view category = {};
  std::initializer_list<TraceArg> args = {};
};

class TraceLane {
 public:
  TraceLane(const TraceLane&) = delete;
  TraceLane& operator=(const TraceLane&) = delete;

  // For work that no C++ scope encloses; else use TraceSpan. Returns the event to pass to End. An
  // event without End lasts until the file is written.
  size_t Begin(std::string_view name, const TraceInfo& info = {});
  // The same, but with the begin of `inner`, an earlier event of this lane.
  size_t BeginAround(size_t inner, std::string_view name, const TraceInfo& info = {});
  void End(size_t event);

 private:
  friend class Trace;
  friend class TraceWriter;
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kOpen = -1;

  struct Event {
    int64_t begin_ns, end_ns;
    uint32_t name, category, num_args;
  };
  struct Arg {
    uint32_t key;
    TraceArg::Kind kind;
    int64_t value;  // the number, the bits of a double, or the index of a text
  };

  TraceLane(int rank, std::string name, Clock::time_point zero)
      : rank_(rank), name_(std::move(name)), zero_(zero) {}
  int64_t NowNs() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - zero_).count();
  }
  uint32_t Keep(std::string_view text);
  // Call with mutex_ held. The caller sets the event's begin.
  Event& Add(std::string_view name, const TraceInfo& info);

  const int rank_;
  const std::string name_;
  const Clock::time_point zero_;
  std::mutex mutex_;  // guards the members below
  std::vector<Event> events_;
  std::vector<Arg> args_;  // in the order of the events
  std::map<std::string, uint32_t, std::less<>> texts_;
};

// An event from its construction to its destruction. `lane` may be null.
class TraceSpan {
 public:
  TraceSpan(TraceLane* lane, std::string_view name, const TraceInfo& info = {}) : lane_(lane) {
    if (lane_ != nullptr) event_ = lane_->Begin(name, info);
  }
  ~TraceSpan() {
    if (lane_ != nullptr) lane_->End(event_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  TraceLane* lane_;
  size_t event_ = 0;
};

// One piece of a pipeline stage's work, as `apogee timeline` reads it. Leave waiting for the
// neighbour stages outside of the span.
//
//   const TraceSpan span = TracePipeline(lane, PipelineKind::kForward,
//                                        {.step = 7, .micro_batch = 3, .chunk = 0});
enum class PipelineKind : char {
  kForward = 'F',
  kBackward = 'B',  // of the inputs only, if weight gradients have spans of their own
  kWeightBackward = 'W',
};
struct PipelineWork {
  int64_t step = 0, micro_batch = 0;
  int64_t chunk = 0;  // among the model chunks of this rank
};
inline constexpr std::string_view kPipelineCategory = "pipeline";
inline TraceSpan TracePipeline(TraceLane* lane, PipelineKind kind, const PipelineWork& work) {
  const char letter = static_cast<char>(kind);
  const std::string_view name(&letter, 1);
  return TraceSpan(lane, name,
                   {.category = kPipelineCategory,
                    .args = {{"kind", name},
                             {"step", work.step},
                             {"micro_batch", work.micro_batch},
                             {"chunk", work.chunk}}});
}

class Trace {
 public:
  Trace() : zero_(std::chrono::steady_clock::now()) {}
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // The lane of that name. The first call makes it; it lives as long as the trace. Lanes without
  // events are not written.
  TraceLane* Lane(int rank, std::string_view name);

 private:
  friend class TraceWriter;
  const std::chrono::steady_clock::time_point zero_;
  mutable std::mutex mutex_;  // guards lanes_
  std::vector<std::unique_ptr<TraceLane>> lanes_;
};

// The lane, or null if there is no trace.
inline TraceLane* LaneOf(Trace* trace, int rank, std::string_view name) {
  return trace == nullptr ? nullptr : trace->Lane(rank, name);
}

}  // namespace apogee

#endif  // APOGEE_CORE_TRACE_TRACE_H_
