// SPDX-License-Identifier: Apache-2.0

// MemoryPlan: plan.json of a run, its memory planned and measured.
//
//   APOGEE_ASSIGN_OR_RETURN(MemoryPlan plan, ReadMemoryPlan(text, "out/plan.json"));
//   plan.ranks[0].categories[0].name;                      // "parameter"
//
// All are peaks in bytes. The categories' peaks may be at different moments, so their sum may be
// above the rank's peak. "slack" are the bytes that the allocator reserved beyond the categories.
#ifndef APOGEE_REPORT_FILES_MEMORY_PLAN_H_
#define APOGEE_REPORT_FILES_MEMORY_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::report {

struct PlannedBytes {
  int64_t planned = 0, measured = 0;
};
struct PlannedCategory {
  std::string name;
  PlannedBytes peak;
};
struct RankPlan {
  int64_t rank = 0;
  PlannedBytes peak;
  std::vector<PlannedCategory> categories;
};
struct MemoryPlan {
  PlannedBytes peak;
  std::vector<RankPlan> ranks;  // at least one

  // The rank with the highest measured peak.
  const RankPlan& fullest() const;
};

// `path`: for messages. DataLoss names the file and the place of what is wrong.
absl::StatusOr<MemoryPlan> ReadMemoryPlan(const std::string& text, const std::string& path);

}  // namespace apogee::report

#endif  // APOGEE_REPORT_FILES_MEMORY_PLAN_H_
