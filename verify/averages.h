// SPDX-License-Identifier: Apache-2.0

// Averaged weights and states of groups, as recorded with the trajectories of optimizers.
#ifndef APOGEE_VERIFY_AVERAGES_H_
#define APOGEE_VERIFY_AVERAGES_H_

#include "apogee/optim/optimizer.h"
#include "apogee/verify/compare.h"
#include "apogee/verify/golden_case.h"

namespace apogee::verify {

// Compares the weights to evaluate after `step` with those recorded. The optimizer is as before
// then, bit for bit.
void CompareAverages(const GoldenCase& golden, optim::Optimizer& optimizer, int64_t step,
                     Comparison& comparison);
// Compares the states of a group after `step`.
void CompareGroupStates(const GoldenCase& golden, const optim::Optimizer& optimizer, int group,
                        int64_t step, Comparison& comparison);

}  // namespace apogee::verify

#endif  // APOGEE_VERIFY_AVERAGES_H_
