// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/work.h"

#include <thread>

namespace apogee::comm {

bool Work::WaitFor(std::chrono::milliseconds limit) {
  constexpr std::chrono::microseconds kPause{50};
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!IsDone()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kPause);
  }
  Wait();
  return true;
}

}  // namespace apogee::comm
