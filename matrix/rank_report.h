// SPDX-License-Identifier: Apache-2.0

// The result of one rank of a boosted run, in a form that processes can exchange.
//
//   std::vector<RankReport> reports(num_ranks);     // each rank fills its own
//   ShareReports(reports);                          // collective over processes
//   MergeReports(reports, result);
#ifndef APOGEE_MATRIX_RANK_REPORT_H_
#define APOGEE_MATRIX_RANK_REPORT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apogee/layout/layout.h"
#include "apogee/matrix/boosted_run.h"
#include "apogee/matrix/update_error.h"

namespace apogee::matrix {

struct RankReport {
  // This rank's shard of a tensor.
  struct Part {
    int64_t whole_numel = 0;
    std::vector<Segment> segments = {};
    std::vector<double> values = {};
  };

  // As in BoostedResult.
  bool refused = false;
  int64_t num_skipped = 0;
  int64_t collectives = 0;
  int64_t bytes = 0;
  int64_t state_bytes = 0;
  int64_t num_parameters = 0;
  Weights weights = {};  // of the whole model
  std::map<std::string, Part> masters = {};
};

// Gives every process the reports of all ranks; does nothing if ranks are threads. Throws CommError
// if a process is lost.
void ShareReports(std::vector<RankReport>& reports);

// Merges the reports of ranks that all finished. Throws Error if their values differ.
void MergeReports(const std::vector<RankReport>& reports, BoostedResult& result);

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_RANK_REPORT_H_
