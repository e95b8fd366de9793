// SPDX-License-Identifier: Apache-2.0

// Errors relative to the update (matrix/update_error.h), for tests.
//
//   EXPECT_LE(WorstUpdateError(start, want, got).error, 1e-9);
#ifndef APOGEE_TESTS_SUPPORT_EXACTNESS_H_
#define APOGEE_TESTS_SUPPORT_EXACTNESS_H_

#include "apogee/matrix/update_error.h"

namespace apogee::testing {

using matrix::UpdateError;
using matrix::UpdateErrors;
using matrix::Weights;
using matrix::WeightsOf;
using matrix::WorstError;
using matrix::WorstUpdateError;

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_EXACTNESS_H_
