// SPDX-License-Identifier: Apache-2.0

// The flight records that the ranks of a launch wrote (LaunchOptions::flight_record_dir).
//
//   APOGEE_ASSIGN_OR_RETURN(FlightFiles files, ReadFlightFiles("flight"));
//   files.ranks.at(1).calls.back().call             // "barrier"
//
// Errors: NotFound for a folder without records; DataLoss that names the file and the problem.
#ifndef APOGEE_TOOLS_HANG_REPORT_FLIGHT_FILES_H_
#define APOGEE_TOOLS_HANG_REPORT_FLIGHT_FILES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::tools {

// Ranks that number their calls together: a group, or, if sender and receiver are set, a pair.
struct FlightChannel {
  std::string group;
  std::vector<int> ranks;
  int sender = -1, receiver = -1;
  int64_t num_calls = 0;  // made by the rank of this record
};

struct FlightFileCall {
  size_t channel = 0;
  int64_t sequence = 0;
  std::string call;
  // "waiting": not all members had called.
  // "moving": data was in transfer.
  // "done", "failed".
  std::string state;
  double called_ms = 0, ended_ms = 0;  // ended_ms of a call in progress: the record's age
  std::string error;
  std::vector<int> missing;  // members that had not called when it failed
};

struct FlightFile {
  int rank = 0, num_ranks = 0;
  std::string host;
  // "running", "returned" or "failed: why".
  std::string function;
  double age_ms = 0;
  std::vector<FlightChannel> channels;
  std::vector<FlightFileCall> calls;  // oldest first
};

struct FlightFiles {
  int num_ranks = 0;
  std::map<int, FlightFile> ranks;  // that have left a record
};

absl::StatusOr<FlightFile> ParseFlightFile(const std::string& text, const std::string& path);
absl::StatusOr<FlightFiles> ReadFlightFiles(const std::string& directory);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_HANG_REPORT_FLIGHT_FILES_H_
