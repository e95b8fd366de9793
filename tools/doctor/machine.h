// SPDX-License-Identifier: Apache-2.0

// What the machine is and has left: processor, memory, disks, system, network.
//
//   AddMachine(report);
#ifndef APOGEE_TOOLS_DOCTOR_MACHINE_H_
#define APOGEE_TOOLS_DOCTOR_MACHINE_H_

#include "apogee/tools/doctor/report.h"

namespace apogee::tools::doctor {

void AddProcessor(Report& report);
void AddMemoryAndDisks(Report& report);
// Kernel, containers, interfaces of the network (names, no addresses).
void AddSystem(Report& report);

// Advice for this much free memory that processes can share; empty where it is enough for one rank
// per core.
std::string SharedMemoryAdvice(int64_t free_bytes, int cores);

}  // namespace apogee::tools::doctor

#endif  // APOGEE_TOOLS_DOCTOR_MACHINE_H_
