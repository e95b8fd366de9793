// SPDX-License-Identifier: Apache-2.0

// The price of a program's run, and how close it was. Private to driver.
//
//   const RunPlan plan = PlanRun(flags, program.train, corpus, start);       // before launch
//   run.Note(ComparePlan(plan, world));                                      // at the end
//
// The dry run trains two steps with the program's own code, without output, and validates.
#ifndef APOGEE_DRIVER_RECORDS_RUN_PLAN_H_
#define APOGEE_DRIVER_RECORDS_RUN_PLAN_H_

#include <functional>
#include <string>
#include <vector>

#include "apogee/driver/program.h"
#include "apogee/plan/dry_run.h"

namespace apogee::driver {

inline constexpr int64_t kPlannedSteps = 2;

struct RunPlan {
  std::vector<plan::RankPlan> ranks = {};  // of all ranks; empty: there is no plan
  std::string why_not = {};                // why there is none
};

// Of ranks that are processes, only rank 0's makes the plan. Changes the flags while it runs, and
// puts them back.
RunPlan PlanRun(RunFlags& flags, const std::function<int(const Rank&)>& train, const Corpus& corpus,
                const ProcessMemory& start);

// The planned and measured memory of every rank: as text for people, and as the file plan.json.
// Every rank calls this; rank 0's result has the plan.
struct PlanComparison {
  std::string text;  // "memory: planned 412.0 MiB, measured 415.1 MiB (+0.7 %) on rank 0; …"
  std::string json;  // "": there is no plan
};
PlanComparison ComparePlan(const RunPlan& plan, const comm::World& world);

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_RECORDS_RUN_PLAN_H_
