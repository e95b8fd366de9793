// SPDX-License-Identifier: Apache-2.0

// Overslept: whether a wait ended so late that this process must have been stopped meanwhile (by
// Ctrl-Z or a debugger). Its peers may have been stopped too, so their absence proves nothing: give
// them the timeout once more. Private to comm.
//
//   const auto deadline = Clock::now() + timeout;
//   if (!WaitUntil(deadline) && Overslept(deadline)) ...  // wait again
#ifndef APOGEE_COMM_FAILURE_OVERSLEPT_H_
#define APOGEE_COMM_FAILURE_OVERSLEPT_H_

#include <chrono>

namespace apogee::comm {

inline bool Overslept(std::chrono::steady_clock::time_point deadline) {
  // Longer than a busy machine delays a process.
  return std::chrono::steady_clock::now() > deadline + std::chrono::seconds(1);
}

}  // namespace apogee::comm

#endif  // APOGEE_COMM_FAILURE_OVERSLEPT_H_
