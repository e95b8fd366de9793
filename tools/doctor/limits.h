// SPDX-License-Identifier: Apache-2.0

// What the control groups of this process allow it, which containers and batch systems set.
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

// The smallest limit of this process' group and those above it, of version 1 and 2. `root`: where
// /proc and /sys are.
CgroupLimits ReadCgroupLimits(const std::string& root = "");

// Rows of setrlimit, with advice where one is low.
void AddProcessLimits(Report& report);

// First line of a file without its line end, empty where there is none.
std::string FirstLine(const std::string& path);

}  // namespace apogee::tools::doctor

#endif  // APOGEE_TOOLS_DOCTOR_LIMITS_H_
