// SPDX-License-Identifier: Apache-2.0

// Reports how many threads OpenMP gives a rank, and the settings that limit them.
//
//   AddThreads(report);
#ifndef APOGEE_TOOLS_DOCTOR_THREADS_H_
#define APOGEE_TOOLS_DOCTOR_THREADS_H_

#include "apogee/tools/doctor/report.h"

namespace apogee::tools::doctor {

// On a thread of its own, asks for the number of threads that launch gives one rank (at least 2)
// and starts them.
void AddThreads(Report& report);

}  // namespace apogee::tools::doctor

#endif  // APOGEE_TOOLS_DOCTOR_THREADS_H_
