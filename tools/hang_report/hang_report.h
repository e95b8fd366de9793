// SPDX-License-Identifier: Apache-2.0

// Finds the rank that kept a launch from finishing, from the flight records of its ranks.
//
//   HangReport report = FindCulprit(files);
//   report.sentence        // "rank 1 did not call all_reduce(sum, 8 x f32) #5 of group [0 1 2], …"
//
// Records of some ranks may be missing: those ranks were killed or stopped.
#ifndef APOGEE_TOOLS_HANG_REPORT_HANG_REPORT_H_
#define APOGEE_TOOLS_HANG_REPORT_HANG_REPORT_H_

#include <string>
#include <vector>

#include "apogee/tools/hang_report/flight_files.h"

namespace apogee::tools {

struct HangReport {
  std::string sentence;
  std::vector<int> culprits;         // empty: no rank in particular
  std::vector<std::string> by_rank;  // the last call of each rank
};

HangReport FindCulprit(const FlightFiles& files);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_HANG_REPORT_HANG_REPORT_H_
