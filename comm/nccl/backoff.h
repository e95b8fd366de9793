// SPDX-License-Identifier: Apache-2.0

// Backoff: how long to pause between two checks of something that is usually done at once, and
// sometimes late. Private to comm/nccl.
//
//   for (Backoff backoff; !Done();) Pause(backoff.Next());     // 0: only yield
//
// The first kSpins pauses are 0. Then they double from kFirst to kLast, so a check comes at most
// about as long after the event as the event took.
#ifndef APOGEE_COMM_NCCL_BACKOFF_H_
#define APOGEE_COMM_NCCL_BACKOFF_H_

#include <algorithm>
#include <chrono>

namespace apogee::comm::nccl {

class Backoff {
 public:
  // Some tens of microseconds, at the cost of a check of NCCL's progress.
  static constexpr int kSpins = 100;
  static constexpr std::chrono::microseconds kFirst{20}, kLast{1000};

  std::chrono::microseconds Next() {
    if (num_spins_ < kSpins) {
      ++num_spins_;
      return std::chrono::microseconds(0);
    }
    const std::chrono::microseconds pause = pause_;
    pause_ = std::min(2 * pause_, kLast);
    return pause;
  }

 private:
  int num_spins_ = 0;
  std::chrono::microseconds pause_ = kFirst;
};

}  // namespace apogee::comm::nccl

#endif  // APOGEE_COMM_NCCL_BACKOFF_H_
