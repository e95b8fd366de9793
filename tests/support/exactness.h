// SPDX-License-Identifier: Apache-2.0

// Errors relative to the update (tools/matrix/update_error.h), for tests.
//
//   EXPECT_LE(WorstUpdateError(start, want, got).error, 1e-9);
#ifndef APOGEE_TESTS_SUPPORT_EXACTNESS_H_
#define APOGEE_TESTS_SUPPORT_EXACTNESS_H_

#include "apogee/tools/matrix/update_error.h"

namespace apogee::testing {

using tools::UpdateError;
using tools::UpdateErrors;
using tools::Weights;
using tools::WeightsOf;
using tools::WorstError;
using tools::WorstUpdateError;

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_EXACTNESS_H_
