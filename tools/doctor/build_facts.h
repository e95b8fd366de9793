// SPDX-License-Identifier: Apache-2.0

// Reports how this program was built.
//
//   AddBuild(launcher, report);
#ifndef APOGEE_TOOLS_DOCTOR_BUILD_FACTS_H_
#define APOGEE_TOOLS_DOCTOR_BUILD_FACTS_H_

#include "apogee/tools/doctor/launcher.h"
#include "apogee/tools/doctor/report.h"

namespace apogee::tools::doctor {

// Lists `launcher` next to the MPI that the program is linked with.
void AddBuild(const Launcher& launcher, Report& report);

}  // namespace apogee::tools::doctor

#endif  // APOGEE_TOOLS_DOCTOR_BUILD_FACTS_H_
