// SPDX-License-Identifier: Apache-2.0

#include "apogee/report/files/memory_plan.h"

#include <algorithm>

#include "apogee/report/files/flat_json.h"

namespace apogee::report {
namespace {

absl::StatusOr<PlannedBytes> ReadPeak(const FlatJson& json, const std::string& pointer) {
  PlannedBytes peak;
  APOGEE_ASSIGN_OR_RETURN(peak.planned, json.Count(pointer + "/planned_peak_bytes"));
  APOGEE_ASSIGN_OR_RETURN(peak.measured, json.Count(pointer + "/measured_peak_bytes"));
  return peak;
}

}  // namespace

const RankPlan& MemoryPlan::fullest() const {
  return *std::ranges::max_element(ranks, {},
                                   [](const RankPlan& rank) { return rank.peak.measured; });
}

absl::StatusOr<MemoryPlan> ReadMemoryPlan(const std::string& text, const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(const FlatJson json, FlatJson::Read(text, path));
  MemoryPlan plan;
  APOGEE_ASSIGN_OR_RETURN(plan.peak, ReadPeak(json, ""));
  APOGEE_ASSIGN_OR_RETURN(const auto ranks, json.Children("/ranks"));
  if (ranks.empty()) return DataLoss(path, ": \"/ranks\" is empty; it must have the ranks' peaks");
  for (const std::string& index : ranks) {
    const std::string pointer = FlatJson::Child("/ranks", index);
    RankPlan& rank = plan.ranks.emplace_back();
    APOGEE_ASSIGN_OR_RETURN(rank.rank, json.Count(pointer + "/rank"));
    APOGEE_ASSIGN_OR_RETURN(rank.peak, ReadPeak(json, pointer));
    APOGEE_ASSIGN_OR_RETURN(const auto names, json.Children(pointer + "/categories"));
    for (const std::string& name : names) {
      PlannedCategory& category = rank.categories.emplace_back();
      category.name = name;
      APOGEE_ASSIGN_OR_RETURN(category.peak,
                              ReadPeak(json, FlatJson::Child(pointer + "/categories", name)));
    }
  }
  return plan;
}

}  // namespace apogee::report
