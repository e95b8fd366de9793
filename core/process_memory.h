// SPDX-License-Identifier: Apache-2.0

// Memory of the whole process as the operating system sees it, to hold the ledger's figures
// against.
//
//   absl::StatusOr<ProcessMemory> memory = ReadProcessMemory();
//   printf("peak %s\n", FormatBytes(memory->peak_own_bytes()).c_str());
//
// Linux only (/proc/self/status); elsewhere Unavailable.
#ifndef APOGEE_CORE_PROCESS_MEMORY_H_
#define APOGEE_CORE_PROCESS_MEMORY_H_

#include <cstdint>

#include "apogee/core/status.h"

namespace apogee {

// Bytes in physical memory.
struct ProcessMemory {
  int64_t resident_bytes = 0;       // now (VmRSS), everything included
  int64_t peak_resident_bytes = 0;  // highest since the process began (VmHWM)
  int64_t file_bytes = 0;  // now: pages of files, such as the code of programs and libraries

  // What the process asked for itself. Code is paged in as it runs for the first time, which is no
  // allocation of anybody.
  int64_t own_bytes() const { return resident_bytes - file_bytes; }
  // Files' pages come and stay, so their size now is their size at the peak or, at the most, above
  // it.
  int64_t peak_own_bytes() const { return peak_resident_bytes - file_bytes; }
};

absl::StatusOr<ProcessMemory> ReadProcessMemory();

// Bytes that this machine can still give out without swapping (MemAvailable).
absl::StatusOr<int64_t> AvailableMemoryBytes();

}  // namespace apogee

#endif  // APOGEE_CORE_PROCESS_MEMORY_H_
