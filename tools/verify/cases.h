// SPDX-License-Identifier: Apache-2.0

// The replays, one per family of recorded cases. Each throws Error for a case it cannot read.
#ifndef APOGEE_TOOLS_VERIFY_CASES_H_
#define APOGEE_TOOLS_VERIFY_CASES_H_

#include "apogee/tools/verify/compare.h"
#include "apogee/tools/verify/golden_case.h"

namespace apogee::tools {

// With `dtype` f64 the replay runs in double precision and also compares with recorded float64
// runs.
Comparison ReplayOptimizer(const GoldenCase& golden, DType dtype);
Comparison ReplayGradClip(const GoldenCase& golden, DType dtype);
Comparison ReplayLrSchedule(const GoldenCase& golden, DType dtype);
Comparison ReplayQuant(const GoldenCase& golden, DType dtype);
Comparison ReplayOneBit(const GoldenCase& golden, DType dtype);
Comparison ReplayCompressedAllReduce(const GoldenCase& golden, DType dtype);
Comparison ReplayModel(const GoldenCase& golden, DType dtype);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_VERIFY_CASES_H_
