// SPDX-License-Identifier: Apache-2.0

// How many threads OpenMP gives a rank that asks for them, and what gives it fewer.
//
//   AddThreads(report);
#ifndef APOGEE_TOOLS_DOCTOR_THREADS_H_
#define APOGEE_TOOLS_DOCTOR_THREADS_H_

#include "apogee/tools/doctor/report.h"

namespace apogee::tools::doctor {

// Asks for what launch gives one rank, at least 2, on a thread of its own; starts as many.
void AddThreads(Report& report);

}  // namespace apogee::tools::doctor

#endif  // APOGEE_TOOLS_DOCTOR_THREADS_H_
