// SPDX-License-Identifier: Apache-2.0

// The signs of singular vectors are free, and moments outlive a basis: across a refresh a run
// agrees with a recorded one only when its vectors take the signs of the recorded ones.
#ifndef APOGEE_TOOLS_VERIFY_GALORE_SIGNS_H_
#define APOGEE_TOOLS_VERIFY_GALORE_SIGNS_H_

#include <string>

#include "apogee/optim/galore.h"
#include "apogee/tools/verify/compare.h"
#include "apogee/tools/verify/golden_case.h"

namespace apogee::tools {

// Flips vectors of `basis`, computed for parameter `name` at `step`. Fails the comparison when no
// basis is recorded there or one of another shape: then the refreshes differ.
void AlignSigns(const GoldenCase& golden, const std::string& name, int64_t step,
                const optim::NewBasis& basis, Comparison& comparison);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_VERIFY_GALORE_SIGNS_H_
