// SPDX-License-Identifier: Apache-2.0

// Comparisons of cases with 8-bit states. Their tolerances say how many elements may be off because
// a code fell to the other side of a rounding boundary, and how far.
#ifndef APOGEE_TOOLS_VERIFY_LOW_BIT_STATES_H_
#define APOGEE_TOOLS_VERIFY_LOW_BIT_STATES_H_

#include <string>

#include "apogee/optim/param_view.h"
#include "apogee/tools/verify/compare.h"
#include "apogee/tools/verify/golden_case.h"

namespace apogee::tools {

// The tolerances are of this kind.
bool HasLowBitTolerances(const Json& tolerance);
void CompareLowBitWeights(const std::vector<double>& x, const std::vector<double>& golden,
                          const Json& tolerance, const std::string& where, Comparison& comparison);
// Codes, scales or full states of `view` after `step`, where they are recorded.
void CompareLowBitState(const GoldenCase& golden, const optim::ParamView& view,
                        const optim::NamedState& state, int64_t step, Comparison& comparison);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_VERIFY_LOW_BIT_STATES_H_
