// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/transport/machines.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <string_view>

namespace apogee::comm {

absl::StatusOr<std::optional<int>> RanksPerMachineInEnvironment() {
  const char* value = std::getenv("APOGEE_RANKS_PER_MACHINE");
  if (value == nullptr) return std::nullopt;
  const std::string_view text(value);
  int ranks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  if (error != std::errc() || end != text.data() + text.size() || ranks < 1) {
    return InvalidArgument("launch: the environment variable APOGEE_RANKS_PER_MACHINE is '", text,
                           "'; it must be a positive number, the number of ranks that count as one "
                           "machine; unset it to use the real machines");
  }
  return ranks;
}

std::string ThisMachine() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return std::string(name) + " " + boot;
}

}  // namespace apogee::comm
