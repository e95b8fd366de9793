// SPDX-License-Identifier: Apache-2.0

// GiveUpAt: how long a launch waits for a rank whose function runs on after another one has failed.
//
//   if (failed && Clock::now() > GiveUpAt(waited_for, failed_at, active_at, timeout)) ...
//
// If a collective has already waited for the rank for the timeout, the rank has had its time. Any
// other rank may be computing and learns of the failure at its next collective: it gets the timeout
// from the failure on. Private to comm.
#ifndef APOGEE_COMM_FAILURE_GIVE_UP_H_
#define APOGEE_COMM_FAILURE_GIVE_UP_H_

#include <algorithm>
#include <chrono>

namespace apogee::comm {

// Exit code of a process that ends because a rank is lost (docs/launch.md).
inline constexpr int kExitCode = 70;
inline constexpr std::chrono::milliseconds kGrace(500);

// `waited_for`: whether a collective has timed out waiting for the rank. `failed_at`: when the
// first function failed. `active_at`: when the rank last called a collective or waited for one.
inline std::chrono::steady_clock::time_point GiveUpAt(
    bool waited_for, std::chrono::steady_clock::time_point failed_at,
    std::chrono::steady_clock::time_point active_at, std::chrono::milliseconds timeout) {
  if (!waited_for) return failed_at + timeout + kGrace;
  return std::max(failed_at, active_at + timeout) + kGrace;
}

}  // namespace apogee::comm

#endif  // APOGEE_COMM_FAILURE_GIVE_UP_H_
