// SPDX-License-Identifier: Apache-2.0

// Whether a wait ended so late that this process must have been stopped meanwhile (Ctrl-Z, a
// debugger). Its peers may have been stopped with it: that they have not come says nothing then,
// and they get their time once more. Private to comm.
//
//   const auto deadline = Clock::now() + timeout;
//   if (!WaitUntil(deadline) && Overslept(deadline)) ...  // wait again
#ifndef APOGEE_COMM_OVERSLEPT_H_
#define APOGEE_COMM_OVERSLEPT_H_

#include <chrono>

namespace apogee::comm {

inline bool Overslept(std::chrono::steady_clock::time_point deadline) {
  // More than a busy machine makes a process wait for its turn.
  return std::chrono::steady_clock::now() > deadline + std::chrono::seconds(1);
}

}  // namespace apogee::comm

#endif  // APOGEE_COMM_OVERSLEPT_H_
