// SPDX-License-Identifier: Apache-2.0

#include "code_place.h"

#include <link.h>
#include <unistd.h>

#include <array>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <sstream>
#include <string>

namespace cuda_emulation {
namespace {

// The distance between the program's addresses and those in its file.
uintptr_t LoadAddress() {
  uintptr_t address = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        *static_cast<uintptr_t*>(result) = info->dlpi_addr;
        return 1;  // the first is the program
      },
      &address);
  return address;
}

std::string OutputOf(const std::string& command) {
  std::string output;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return output;
  std::array<char, 4096> part;
  for (size_t n; (n = std::fread(part.data(), 1, part.size(), pipe)) > 0;) {
    output.append(part.data(), n);
  }
  pclose(pipe);
  return output;
}

}  // namespace

CodePlace PlaceOf(const void* code) {
  std::array<char, 32> address;
  std::snprintf(address.data(), address.size(), "0x%" PRIxPTR,
                reinterpret_cast<uintptr_t>(code) - LoadAddress());
  const std::string at = std::string(" ") + address.data();
  const std::string program = "/proc/" + std::to_string(getpid()) + "/exe";
  std::istringstream output(OutputOf("addr2line -Cfie " + program + at + " 2>/dev/null"));
  CodePlace place;
  for (std::string function, line; std::getline(output, function) && std::getline(output, line);) {
    place.function = function;
    line = line.substr(0, line.find(" (discriminator"));
    const bool emulation = line.find("/cuda_emulation/") != std::string::npos;
    if (line.starts_with("/usr/") || (emulation && line.find(".h:") != std::string::npos)) continue;
    place.line += (place.line.empty() ? "" : ", called at ") + line;
  }
  if (place.function.empty()) return {address.data(), address.data()};
  return place;
}

}  // namespace cuda_emulation
