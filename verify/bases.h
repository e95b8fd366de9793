// SPDX-License-Identifier: Apache-2.0

// The bases of recorded trajectories. Dion's begin with recorded numbers. The signs of columns are
// those of the reference's decompositions, and change no weights. SOAP's first bases of singular
// matrices are arbitrary and change them, so recorded ones take their place.
#ifndef APOGEE_VERIFY_BASES_H_
#define APOGEE_VERIFY_BASES_H_

#include <string>
#include <vector>

#include "apogee/optim/optimizer.h"
#include "apogee/verify/golden_case.h"

namespace apogee::verify {

// Puts the recorded first bases into the states of an optimizer that has made no step.
void StartFromBases(const GoldenCase& golden, optim::Optimizer& optimizer);
// Replaces the bases that SOAP has made in a parameter's first update by the recorded ones.
void InjectBases(const GoldenCase& golden, optim::Optimizer& optimizer, int64_t step);
// Turns the columns of `basis` to those of the recorded `entry`, of the same shape.
void AlignColumns(const GoldenCase& golden, const std::string& entry, std::vector<double>& basis);

}  // namespace apogee::verify

#endif  // APOGEE_VERIFY_BASES_H_
