// SPDX-License-Identifier: Apache-2.0

// Reports the machine: processor, free memory and disks, operating system, network.
//
//   AddProcessor(report);
//   AddMemoryAndDisks(report);
//   AddSystem(report);
#ifndef APOGEE_TOOLS_DOCTOR_MACHINE_H_
#define APOGEE_TOOLS_DOCTOR_MACHINE_H_

#include "apogee/tools/doctor/report.h"

namespace apogee::tools::doctor {

void AddProcessor(Report& report);
void AddMemoryAndDisks(Report& report);
// Kernel, container, network interfaces (names, no addresses).
void AddSystem(Report& report);

// Advice for this much free shared memory; empty if it is enough for one rank per core.
std::string SharedMemoryAdvice(int64_t free_bytes, int cores);

}  // namespace apogee::tools::doctor

#endif  // APOGEE_TOOLS_DOCTOR_MACHINE_H_
