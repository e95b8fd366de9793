// SPDX-License-Identifier: Apache-2.0

// Runs the two-rank self test of every communication backend, each in processes of its own, with a
// time limit.
//
//   bool ok = TestBackends({.program = "/usr/bin/apogee", .limit_seconds = 60}, launcher, report);
#ifndef APOGEE_TOOLS_DOCTOR_BACKENDS_H_
#define APOGEE_TOOLS_DOCTOR_BACKENDS_H_

#include <string>

#include "apogee/tools/doctor/launcher.h"
#include "apogee/tools/doctor/report.h"

namespace apogee::tools::doctor {

struct BackendOptions {
  std::string program;  // this program; `program doctor --self-test NAME` runs the test
  double limit_seconds = 60;
};

// Adds a row per backend. Returns false if a test failed. A backend that the build or the machine
// lacks is not tested and is no failure.
bool TestBackends(const BackendOptions& options, const Launcher& launcher, Report& report);

}  // namespace apogee::tools::doctor

#endif  // APOGEE_TOOLS_DOCTOR_BACKENDS_H_
