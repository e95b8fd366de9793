// SPDX-License-Identifier: Apache-2.0

// Whose fault it was that a launch did not come to its end, out of the flight records of its ranks.
//
//   HangReport report = FindCulprit(files);
//   report.sentence        // "rank 1 did not call all_reduce(sum, 8 x f32) #5 of group [0 1 2], …"
//
// Some ranks may have left no record: those are the ones that were killed or stopped.
#ifndef APOGEE_TOOLS_HANG_REPORT_HANG_REPORT_H_
#define APOGEE_TOOLS_HANG_REPORT_HANG_REPORT_H_

#include <string>
#include <vector>

#include "apogee/tools/hang_report/flight_files.h"

namespace apogee::tools {

struct HangReport {
  std::string sentence;
  std::vector<int> culprits;         // empty: nobody in particular
  std::vector<std::string> by_rank;  // what each rank did last
};

HangReport FindCulprit(const FlightFiles& files);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_HANG_REPORT_HANG_REPORT_H_
