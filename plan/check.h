// SPDX-License-Identifier: Apache-2.0

// CheckRow: a priced row, trained for real. Private to plan.
//
//   CheckRow(setup, /*threads_per_rank=*/1, row);      // fills in row.measured
#ifndef APOGEE_PLAN_CHECK_H_
#define APOGEE_PLAN_CHECK_H_

#include "apogee/plan/plan.h"

namespace apogee::plan {

// With threads as ranks. row.refusal is set if the run fails. The number of steps depends on the
// predicted time, so that a row takes about two seconds.
void CheckRow(const TrainingSetup& setup, int threads_per_rank, PlanRow& row);

}  // namespace apogee::plan

#endif  // APOGEE_PLAN_CHECK_H_
