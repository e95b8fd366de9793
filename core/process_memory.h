// SPDX-License-Identifier: Apache-2.0

// Memory of the whole process as the operating system sees it, to check the ledger against.
//
//   absl::StatusOr<ProcessMemory> memory = ReadProcessMemory();
//   printf("peak %s\n", FormatBytes(memory->peak_own_bytes()).c_str());
//
// Linux only (/proc/self/status); Unavailable on other systems.
#ifndef APOGEE_CORE_PROCESS_MEMORY_H_
#define APOGEE_CORE_PROCESS_MEMORY_H_

#include <cstdint>

#include "apogee/core/status.h"

namespace apogee {

// Sizes of physical memory in bytes.
struct ProcessMemory {
  int64_t resident_bytes = 0;       // now (VmRSS), everything included
  int64_t peak_resident_bytes = 0;  // highest since the process started (VmHWM)
  int64_t file_bytes = 0;           // now: pages of files, such as code of programs and libraries

  // Memory that the process allocated, without the pages of files. (Code is in files, and comes
  // into memory when it first runs.)
  int64_t own_bytes() const { return resident_bytes - file_bytes; }
  // File pages stay once they are read, so file_bytes now is at least file_bytes at the peak. The
  // result is never too high.
  int64_t peak_own_bytes() const { return peak_resident_bytes - file_bytes; }
};

absl::StatusOr<ProcessMemory> ReadProcessMemory();

// Bytes that this machine can still give to programs without swapping (MemAvailable).
absl::StatusOr<int64_t> AvailableMemoryBytes();

}  // namespace apogee

#endif  // APOGEE_CORE_PROCESS_MEMORY_H_
