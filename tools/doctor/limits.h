// SPDX-License-Identifier: Apache-2.0

// The control group (cgroup) limits of this process; containers and batch systems set them.
//
//   CgroupLimits limits = ReadCgroupLimits();
//   if (limits.cores && *limits.cores < num_threads) ...
#ifndef APOGEE_TOOLS_DOCTOR_LIMITS_H_
#define APOGEE_TOOLS_DOCTOR_LIMITS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "apogee/tools/doctor/report.h"

namespace apogee::tools::doctor {

struct CgroupLimits {
  std::optional<double> cores;
  std::optional<int64_t> memory_bytes;
  std::optional<int64_t> processes;
};

// The smallest limits of this process's group and the groups above it, cgroup version 1 and 2.
// `root`: the folder that contains /proc and /sys.
CgroupLimits ReadCgroupLimits(const std::string& root = "");

// Adds the limits of getrlimit, with advice if one is low.
void AddProcessLimits(Report& report);

// The first line of a file, without its line end; empty if there is none.
std::string FirstLine(const std::string& path);

}  // namespace apogee::tools::doctor

#endif  // APOGEE_TOOLS_DOCTOR_LIMITS_H_
