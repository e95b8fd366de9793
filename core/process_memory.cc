// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/process_memory.h"

#include <fstream>
#include <sstream>
#include <string>

namespace apogee {

absl::StatusOr<ProcessMemory> ReadProcessMemory() {
  std::ifstream file("/proc/self/status");
  ProcessMemory memory;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name;
    int64_t kilobytes = 0;
    if (!(fields >> name >> kilobytes)) continue;
    if (name == "VmRSS:") memory.resident_bytes = kilobytes << 10;
    if (name == "RssFile:") memory.file_bytes = kilobytes << 10;
    if (name == "VmHWM:") memory.peak_resident_bytes = kilobytes << 10;
  }
  if (memory.resident_bytes == 0 || memory.peak_resident_bytes == 0) {
    return absl::UnavailableError(
        "process memory: /proc/self/status has no VmRSS and VmHWM; this needs Linux with /proc "
        "mounted");
  }
  return memory;
}

absl::StatusOr<int64_t> AvailableMemoryBytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name;
    int64_t kilobytes = 0;
    if (fields >> name >> kilobytes && name == "MemAvailable:") return kilobytes << 10;
  }
  return absl::UnavailableError(
      "available memory: /proc/meminfo has no MemAvailable; this needs Linux with /proc mounted");
}

}  // namespace apogee
