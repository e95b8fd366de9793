// SPDX-License-Identifier: Apache-2.0

// The events of a written trace file, parsed.
//
//   const TraceFile file(path);                 // fails the test if the trace is not valid
//   file.Spans(0, "compute")[2].at("name")
#ifndef APOGEE_TESTS_SUPPORT_FILES_TRACE_FILE_H_
#define APOGEE_TESTS_SUPPORT_FILES_TRACE_FILE_H_

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apogee/core/trace/trace.h"
#include "apogee/core/trace/trace_writer.h"
#include "apogee/tests/support/files/temp_dir.h"

namespace apogee::testing {

// Converts microseconds with three decimals to nanoseconds.
inline int64_t Nanoseconds(const nlohmann::json& microseconds) {
  return std::llround(microseconds.get<double>() * 1000);
}

class TraceFile {
 public:
  explicit TraceFile(const std::string& path)
      : document(nlohmann::json::parse(ReadFile(path), nullptr, /*allow_exceptions=*/false)) {
    EXPECT_FALSE(document.is_discarded()) << path << " is no JSON:\n" << ReadFile(path);
    if (document.is_discarded()) return;
    for (const auto& event : document.at("traceEvents")) {
      const std::pair<int, int> row = {event.at("pid"), event.at("tid")};
      if (event.at("ph") == "X") {
        rows_[row].push_back(event);
      } else {
        EXPECT_EQ(event.at("ph"), "M") << event;
        if (event.at("name") == "thread_name") names_[row] = event.at("args").at("name");
        if (event.at("name") == "process_name") ranks_[row.first] = event.at("args").at("name");
      }
    }
    for (const auto& [row, events] : rows_) {
      EXPECT_TRUE(names_.contains(row)) << "a row without a name";
      EXPECT_EQ(ranks_[row.first], "rank " + std::to_string(row.first));
      ExpectNested(events);
    }
  }
  static TraceFile Of(const Trace& trace) {
    const TempDir dir;
    OkOrThrow(WriteTrace(trace, dir / "trace.json"));
    return TraceFile(dir / "trace.json");
  }

  // The spans of all rows with this name, in the order of the file.
  std::vector<nlohmann::json> Spans(int rank, const std::string& lane) const {
    std::vector<nlohmann::json> spans;
    for (const auto& [row, name] : names_) {
      if (row.first != rank || name != lane) continue;
      spans.insert(spans.end(), rows_.at(row).begin(), rows_.at(row).end());
    }
    return spans;
  }
  std::vector<std::string> Lanes(int rank) const {
    std::vector<std::string> lanes;
    for (const auto& [row, name] : names_) {
      if (row.first == rank) lanes.push_back(name);
    }
    return lanes;
  }

  nlohmann::json document;

 private:
  // Viewers need the events of a row sorted by begin, each after or within every other.
  static void ExpectNested(const std::vector<nlohmann::json>& events) {
    std::vector<int64_t> ends;
    int64_t last_ns = 0;
    for (const auto& event : events) {
      const int64_t begin_ns = Nanoseconds(event.at("ts"));
      const int64_t end_ns = begin_ns + Nanoseconds(event.at("dur"));
      EXPECT_LE(last_ns, begin_ns) << event;
      EXPECT_LE(begin_ns, end_ns) << event;
      last_ns = begin_ns;
      while (!ends.empty() && ends.back() <= begin_ns) ends.pop_back();
      if (!ends.empty()) {
        EXPECT_LE(end_ns, ends.back()) << event;
      }
      ends.push_back(end_ns);
    }
  }

  std::map<std::pair<int, int>, std::vector<nlohmann::json>> rows_;
  std::map<std::pair<int, int>, std::string> names_;
  std::map<int, std::string> ranks_;
};

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_FILES_TRACE_FILE_H_
