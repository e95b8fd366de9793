// Memory of the whole process as the operating system sees it, to hold the ledger's figures
// against.
//
//   absl::StatusOr<ProcessMemory> memory = ReadProcessMemory();
//   printf("peak %s\n", FormatBytes(memory->peak_resident_bytes).c_str());
//
// Linux only (/proc/self/status); elsewhere Unavailable.
#ifndef APOGEE_CORE_PROCESS_MEMORY_H_
#define APOGEE_CORE_PROCESS_MEMORY_H_

#include <cstdint>

#include "apogee/core/status.h"

namespace apogee {

// Bytes in physical memory, shared libraries and their tables included.
struct ProcessMemory {
  int64_t resident_bytes = 0;       // now (VmRSS)
  int64_t peak_resident_bytes = 0;  // highest since the process began (VmHWM)
};

absl::StatusOr<ProcessMemory> ReadProcessMemory();

}  // namespace apogee

#endif  // APOGEE_CORE_PROCESS_MEMORY_H_
