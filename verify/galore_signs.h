// SPDX-License-Identifier: Apache-2.0

// GaLore's recorded bases. The signs of singular vectors are arbitrary, and moments are kept when
// the basis changes. A run therefore agrees with a recorded one after a refresh only if its vectors
// have the recorded signs.
#ifndef APOGEE_VERIFY_GALORE_SIGNS_H_
#define APOGEE_VERIFY_GALORE_SIGNS_H_

#include <string>

#include "apogee/optim/lowrank/galore.h"
#include "apogee/verify/compare.h"
#include "apogee/verify/golden_case.h"

namespace apogee::verify {

// Gives the vectors of `basis`, computed for parameter `name` at `step`, the recorded signs. Fails
// the comparison if no basis, or one of another shape, is recorded there: then the refreshes
// differ.
void AlignSigns(const GoldenCase& golden, const std::string& name, int64_t step,
                const optim::NewBasis& basis, Comparison& comparison);

}  // namespace apogee::verify

#endif  // APOGEE_VERIFY_GALORE_SIGNS_H_
