// SPDX-License-Identifier: Apache-2.0

// Reports the environment variables that change how ranks start, communicate and compute.
//
//   AddEnvironment(environ, report);
//
// Other variables are not shown at all. For variables that may hold a secret or an address only the
// name is shown.
#ifndef APOGEE_TOOLS_DOCTOR_ENVIRONMENT_H_
#define APOGEE_TOOLS_DOCTOR_ENVIRONMENT_H_

#include <optional>
#include <string>

#include "apogee/tools/doctor/report.h"

namespace apogee::tools::doctor {

// `variables`: NAME=VALUE, ended by null.
void AddEnvironment(const char* const* variables, Report& report);

// The launcher that started this process, with rank and number of processes; nothing if none did.
struct Started {
  std::string by;  // "mpirun (Open MPI)"
  int rank = 0, size = 1;
};
std::optional<Started> StartedBy();

// Removes the variables that tell a program which launcher started it, so that children don't
// inherit them.
void ForgetLauncher();

}  // namespace apogee::tools::doctor

#endif  // APOGEE_TOOLS_DOCTOR_ENVIRONMENT_H_
