// SPDX-License-Identifier: Apache-2.0

// Environment variables that change how ranks start, talk and compute.
//
//   AddEnvironment(environ, report);
//
// Of all others neither name nor value is shown, and of those that may hold a secret or an address
// no value.
#ifndef APOGEE_TOOLS_DOCTOR_ENVIRONMENT_H_
#define APOGEE_TOOLS_DOCTOR_ENVIRONMENT_H_

#include <optional>
#include <string>

#include "apogee/tools/doctor/report.h"

namespace apogee::tools::doctor {

// `variables`: NAME=VALUE, ended by null.
void AddEnvironment(const char* const* variables, Report& report);

// Which of how many processes this is, where a launcher has started it.
struct Started {
  std::string by;  // "mpirun (Open MPI)"
  int rank = 0, size = 1;
};
std::optional<Started> StartedBy();

// Takes away what tells a program that a launcher started it, which children must not inherit.
void ForgetLauncher();

}  // namespace apogee::tools::doctor

#endif  // APOGEE_TOOLS_DOCTOR_ENVIRONMENT_H_
