// SPDX-License-Identifier: Apache-2.0

// Comparisons for cases with 8-bit states. Their tolerances say how many elements may be off, and
// how far, because a code was rounded to the other side of a boundary.
#ifndef APOGEE_VERIFY_LOW_BIT_STATES_H_
#define APOGEE_VERIFY_LOW_BIT_STATES_H_

#include <string>

#include "apogee/optim/param_view.h"
#include "apogee/verify/compare.h"
#include "apogee/verify/golden_case.h"

namespace apogee::verify {

// True if the tolerances are of this kind.
bool HasLowBitTolerances(const Json& tolerance);
void CompareLowBitWeights(const std::vector<double>& x, const std::vector<double>& golden,
                          const Json& tolerance, const std::string& where, Comparison& comparison);
// Compares the codes, scales or full states of `view` after `step`, if they are recorded.
void CompareLowBitState(const GoldenCase& golden, const optim::ParamView& view,
                        const optim::NamedState& state, int64_t step, Comparison& comparison);

}  // namespace apogee::verify

#endif  // APOGEE_VERIFY_LOW_BIT_STATES_H_
