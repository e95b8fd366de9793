// SPDX-License-Identifier: Apache-2.0

// WriteTrace: writes the events as JSON. The file is either complete or not there.
#include "apogee/core/trace/trace_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "apogee/core/text/text.h"
#include "apogee/core/trace/trace.h"

namespace apogee {
namespace {

// A name in the same folder that contains the process id, because two runs may use the same path.
std::string PartPath(const std::string& path) { return path + ".part" + std::to_string(getpid()); }

absl::Status CannotWrite(const std::string& path, const std::string& reason) {
  return InvalidArgument("cannot write the trace ", path, ": ", reason,
                         "; give a file in a folder that you may write to");
}

// Nanoseconds as microseconds with three decimals: "12.345".
std::string Microseconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%lld.%03lld", static_cast<long long>(ns / 1000),
                static_cast<long long>(ns % 1000));
  return text;
}

std::string Real(double value) {
  if (!std::isfinite(value))
    return std::isnan(value) ? "\"nan\"" : value > 0 ? "\"inf\"" : "\"-inf\"";
  char text[40];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

}  // namespace

// A new file, which is removed again unless it is committed.
class NewTraceFile {
 public:
  explicit NewTraceFile(const std::string& path) : path_(path), part_(PartPath(path)) {}
  ~NewTraceFile() {
    if (descriptor_ < 0) return;
    close(descriptor_);
    unlink(part_.c_str());
  }
  NewTraceFile(const NewTraceFile&) = delete;
  NewTraceFile& operator=(const NewTraceFile&) = delete;

  absl::Status Open() {
    if (path_.empty()) return CannotWrite(path_, "the path is empty");
    struct stat old;
    if (stat(path_.c_str(), &old) == 0 && !S_ISREG(old.st_mode)) {
      return CannotWrite(path_, "something other than a regular file is there");
    }
    descriptor_ = open(part_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return descriptor_ < 0 ? CannotWrite(path_, std::strerror(errno)) : absl::OkStatus();
  }
  absl::Status Append(const std::string& text) {
    for (size_t done = 0; done < text.size();) {
      const ssize_t count = write(descriptor_, text.data() + done, text.size() - done);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return CannotWrite(path_, count < 0 ? std::strerror(errno) : "disk full");
      done += static_cast<size_t>(count);
    }
    return absl::OkStatus();
  }
  absl::Status Commit() {
    // Some file systems report a full disk only here.
    if (fsync(descriptor_) != 0 || rename(part_.c_str(), path_.c_str()) != 0) {
      return CannotWrite(path_, std::strerror(errno));
    }
    close(descriptor_);
    descriptor_ = -1;
    return absl::OkStatus();
  }

 private:
  std::string path_, part_;
  int descriptor_ = -1;
};

class TraceWriter {
 public:
  explicit TraceWriter(NewTraceFile& file) : file_(file) {}

  absl::Status Write(const Trace& trace) {
    Header(trace.zero_);
    std::vector<TraceLane*> lanes;
    {
      std::lock_guard lock(trace.mutex_);
      for (const auto& lane : trace.lanes_) lanes.push_back(lane.get());
    }
    for (TraceLane* lane : lanes) APOGEE_RETURN_IF_ERROR(Lane(*lane));
    return Footer();
  }

 private:
  void Header(std::chrono::steady_clock::time_point zero) {
    const int64_t zero_ns =
        std::chrono::duration_cast<std::chrono::nanoseconds>(zero.time_since_epoch()).count();
    text_ = "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"steady_clock_zero_ns\":\"" +
            std::to_string(zero_ns) + "\"},\"traceEvents\":[";
  }

  absl::Status Lane(TraceLane& lane) {
    {
      // Copied, because the run may go on.
      std::lock_guard lock(lane.mutex_);
      events_ = lane.events_;
      args_ = lane.args_;
      texts_.resize(lane.texts_.size());
      for (const auto& [text, number] : lane.texts_) texts_[number] = JsonQuoted(text);
      const int64_t now_ns = lane.NowNs();
      for (TraceLane::Event& event : events_) {
        if (event.end_ns == TraceLane::kOpen) event.end_ns = std::max(now_ns, event.begin_ns);
      }
    }
    if (events_.empty()) return absl::OkStatus();
    int& num_rows = rows_of_rank_[lane.rank_];
    if (num_rows == 0)
      Metadata(lane.rank_, 0, "process_name", "rank " + std::to_string(lane.rank_));
    first_row_ = num_rows;
    row_ends_.clear();
    Sort();
    for (const size_t index : order_) {
      const size_t row = RowFor(events_[index]);
      if (first_row_ + static_cast<int>(row) == num_rows) {
        const std::string number = row == 0 ? "" : " (" + std::to_string(row + 1) + ")";
        Metadata(lane.rank_, num_rows++, "thread_name", lane.name_ + number);
      }
      Event(lane.rank_, first_row_ + static_cast<int>(row), index);
      constexpr size_t kPiece = size_t{1} << 20;
      if (text_.size() > kPiece) APOGEE_RETURN_IF_ERROR(Flush());
    }
    return absl::OkStatus();
  }

  absl::Status Footer() {
    text_ += "\n]}\n";
    return Flush();
  }

  // Sorts by begin; of events that begin together, outer ones come first.
  void Sort() {
    first_arg_.resize(events_.size());
    order_.resize(events_.size());
    size_t arg = 0;
    for (size_t i = 0; i < events_.size(); ++i) {
      order_[i] = i;
      first_arg_[i] = arg;
      arg += events_[i].num_args;
    }
    std::stable_sort(order_.begin(), order_.end(), [this](size_t a, size_t b) {
      if (events_[a].begin_ns != events_[b].begin_ns) {
        return events_[a].begin_ns < events_[b].begin_ns;
      }
      return events_[a].end_ns > events_[b].end_ns;
    });
  }

  // The first row where the event comes after each earlier event or lies within it.
  size_t RowFor(const TraceLane::Event& event) {
    for (size_t row = 0;; ++row) {
      if (row == row_ends_.size()) row_ends_.emplace_back();
      std::vector<int64_t>& open = row_ends_[row];
      while (!open.empty() && open.back() <= event.begin_ns) open.pop_back();
      if (!open.empty() && open.back() < event.end_ns) continue;
      open.push_back(event.end_ns);
      return row;
    }
  }

  void Line(const std::string& event) {
    text_ += has_events_ ? ",\n" : "\n";
    text_ += event;
    has_events_ = true;
  }
  static std::string Place(int rank, int row) {
    return ",\"pid\":" + std::to_string(rank) + ",\"tid\":" + std::to_string(row);
  }

  void Metadata(int rank, int row, const std::string& what, const std::string& name) {
    Line("{\"ph\":\"M\",\"name\":\"" + what + "\"" + Place(rank, row) +
         ",\"args\":{\"name\":" + JsonQuoted(name) + "}}");
    // Without an index, viewers sort by name: rank 10 before rank 2.
    const bool process = what == "process_name";
    Line(std::string("{\"ph\":\"M\",\"name\":\"") + (process ? "process" : "thread") +
         "_sort_index\"" + Place(rank, row) +
         ",\"args\":{\"sort_index\":" + std::to_string(process ? rank : row) + "}}");
  }

  void Event(int rank, int row, size_t index) {
    const TraceLane::Event& event = events_[index];
    std::string line = "{\"ph\":\"X\",\"name\":" + texts_[event.name] +
                       ",\"cat\":" + texts_[event.category] + Place(rank, row) +
                       ",\"ts\":" + Microseconds(event.begin_ns) +
                       ",\"dur\":" + Microseconds(event.end_ns - event.begin_ns) + ",\"args\":{";
    for (uint32_t i = 0; i < event.num_args; ++i) {
      const TraceLane::Arg& arg = args_[first_arg_[index] + i];
      line += (i == 0 ? "" : ",") + texts_[arg.key] + ":";
      switch (arg.kind) {
        case TraceArg::Kind::kInteger:
          line += std::to_string(arg.value);
          break;
        case TraceArg::Kind::kReal:
          line += Real(std::bit_cast<double>(arg.value));
          break;
        case TraceArg::Kind::kText:
          line += texts_[static_cast<size_t>(arg.value)];
          break;
      }
    }
    Line(line + "}}");
  }

  absl::Status Flush() {
    const absl::Status status = file_.Append(text_);
    text_.clear();
    return status;
  }

  NewTraceFile& file_;
  std::string text_;  // not yet in the file
  bool has_events_ = false;
  std::map<int, int> rows_of_rank_;
  // State of the current lane.
  std::vector<TraceLane::Event> events_;
  std::vector<TraceLane::Arg> args_;
  std::vector<std::string> texts_;  // quoted
  std::vector<size_t> order_, first_arg_;
  int first_row_ = 0;
  std::vector<std::vector<int64_t>>
      row_ends_;  // ends of the events around the last one, outermost first
};

absl::Status CheckTraceWritable(const std::string& path) { return NewTraceFile(path).Open(); }

absl::Status WriteTrace(const Trace& trace, const std::string& path) {
  NewTraceFile file(path);
  APOGEE_RETURN_IF_ERROR(file.Open());
  APOGEE_RETURN_IF_ERROR(TraceWriter(file).Write(trace));
  return file.Commit();
}

}  // namespace apogee
