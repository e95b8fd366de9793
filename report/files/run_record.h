// SPDX-License-Identifier: Apache-2.0

// RunRecord: run.json and traffic.json, which a training program writes next to metrics.jsonl.
//
//   RunRecord record{.model = "gpt2", .parameters = 1853568, .ranks = 4, .plugin = "gemini"};
//   file->Append(ToJson(record));
//   APOGEE_ASSIGN_OR_RETURN(record, ReadRunRecord(text, "out/run.json"));
//
// Errors of reading: DataLoss that names the file and the place.
#ifndef APOGEE_REPORT_FILES_RUN_RECORD_H_
#define APOGEE_REPORT_FILES_RUN_RECORD_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::report {

// Files of a run's folder that only some runs write, for their reports. A new run in the folder
// removes those of the run before it.
inline constexpr std::array<const char*, 5> kOptionalFiles = {
    "traffic.json", "trace.json", "shard_map.svg", "chunk_map.svg", "expert_loads.svg"};

// How a run was made.
struct RunRecord {
  std::string model;
  int64_t parameters = 0;  // of the whole model
  int64_t ranks = 1;
  std::string plugin;
  std::map<std::string, std::string> options = {};
};
std::string ToJson(const RunRecord& record);
absl::StatusOr<RunRecord> ReadRunRecord(const std::string& text, const std::string& path);

// The collectives of rank 0 during `steps` whole steps, with the checkpoints saved in them. Payload
// bytes, as comm::Traffic counts them.
struct TrafficRecord {
  struct Row {
    std::string collective;  // "all_reduce"
    int64_t calls = 0, bytes = 0;
  };
  int64_t steps = 0;
  std::vector<Row> rows;
};
std::string ToJson(const TrafficRecord& record);
absl::StatusOr<TrafficRecord> ReadTrafficRecord(const std::string& text, const std::string& path);

}  // namespace apogee::report

#endif  // APOGEE_REPORT_FILES_RUN_RECORD_H_
