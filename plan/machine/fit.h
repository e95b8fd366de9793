// SPDX-License-Identifier: Apache-2.0

// Fit: a kernel's rate from measured calls. Private to plan.
//
//   const KernelRate rate = Fit({{.flops = 1e6, .bytes = 3e4, .seconds = 4e-5}, ...});
#ifndef APOGEE_PLAN_MACHINE_FIT_H_
#define APOGEE_PLAN_MACHINE_FIT_H_

#include <vector>

#include "apogee/plan/machine/machine.h"

namespace apogee::plan {

struct MeasuredCall {
  double flops = 0, bytes = 0, seconds = 0;
};

// The rates, none negative, with the smallest sum of (error^2 / seconds): long calls matter, since
// they make the step's time, and short ones keep their share. All zero for no calls.
KernelRate Fit(const std::vector<MeasuredCall>& calls);

}  // namespace apogee::plan

#endif  // APOGEE_PLAN_MACHINE_FIT_H_
