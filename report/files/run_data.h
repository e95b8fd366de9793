// SPDX-License-Identifier: Apache-2.0

// RunData: all that a report shows of one run, read from its output folder.
//
//   APOGEE_ASSIGN_OR_RETURN(RunData run, ReadRun("out"));
//   run.loss.back().y;                       // of the last step
//   if (run.plan) ... run.plan->peak.measured ...
//
// Only metrics.jsonl must be there. The others are read if they are there: validation.jsonl,
// train.log, run.json, traffic.json, plan.json, trace.json, shard_map.svg, chunk_map.svg,
// expert_loads.svg and the folder `checkpoints`.
//
// Errors: NotFound without a folder or metrics; DataLoss, with the file and the place, for a file
// that is damaged.
#ifndef APOGEE_REPORT_FILES_RUN_DATA_H_
#define APOGEE_REPORT_FILES_RUN_DATA_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/pictures/timeline/pipeline_timeline.h"
#include "apogee/report/charts/thin.h"
#include "apogee/report/files/memory_plan.h"
#include "apogee/report/files/run_log.h"
#include "apogee/report/files/run_record.h"

namespace apogee::report {

struct RunData {
  std::string path;   // of the folder
  std::string label;  // tells the runs of one report apart

  // By step. The value is NaN where it is not known.
  std::vector<Point> loss, lr, grad_norm, tokens_per_s, share_of_peak, validation_loss;
  // Over all steps but the first, which warms up; 0: not known.
  double mean_tokens_per_s = 0;
  // Bytes by name, of the last row.
  std::map<std::string, double> memory;

  RunLog log;
  std::vector<int64_t> checkpoints;   // the steps of those that are there
  std::vector<std::string> rejected;  // the reasons why others are not valid
  std::optional<RunRecord> record;
  std::optional<TrafficRecord> traffic;
  std::optional<MemoryPlan> plan;
  std::vector<StepTimeline> timelines;  // of pipelines
  // Markup for a page; "": none.
  std::string shard_map, chunk_map, expert_loads;
};

// `id`: makes the names in its pictures unique within the page.
absl::StatusOr<RunData> ReadRun(const std::string& path, const std::string& id);

}  // namespace apogee::report

#endif  // APOGEE_REPORT_FILES_RUN_DATA_H_
