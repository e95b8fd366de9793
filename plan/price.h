// SPDX-License-Identifier: Apache-2.0

// Price: the row of one candidate. Private to plan.
//
//   const PlanRow row = Price(setup, candidate, options);
#ifndef APOGEE_PLAN_PRICE_H_
#define APOGEE_PLAN_PRICE_H_

#include "apogee/plan/plan.h"

namespace apogee::plan {

// Dry runs of the candidate's roles. A step of many micro-batches is not run in full: two shorter
// steps are, the longer one by one micro-batch, and the difference is added for every further one.
// This is exact from the number of micro-batches on at which a pipeline is full.
PlanRow Price(const TrainingSetup& setup, const Candidate& candidate, const PlanOptions& options);

}  // namespace apogee::plan

#endif  // APOGEE_PLAN_PRICE_H_
