// SPDX-License-Identifier: Apache-2.0

// RunWithin: runs a call that may never return, on a thread of its own, and waits up to a limit.
//
//   auto answer = std::make_shared<Answer>();
//   if (!RunWithin(std::chrono::seconds(1), [answer] { Ask(*answer); })) GiveUp();
//
// The function must own what it uses, because it may still run after RunWithin has returned.
// Returns false after the limit, or if the system refuses a thread. Private to comm.
#ifndef APOGEE_COMM_FAILURE_RUN_WITHIN_H_
#define APOGEE_COMM_FAILURE_RUN_WITHIN_H_

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

namespace apogee::comm {

inline bool RunWithin(std::chrono::milliseconds limit, std::function<void()> function) {
  const auto promise = std::make_shared<std::promise<void>>();
  std::future<void> done = promise->get_future();
  try {
    std::thread([promise, function = std::move(function)] {
      function();
      promise->set_value();
    }).detach();
  } catch (const std::system_error&) {
    return false;
  }
  return done.wait_for(limit) == std::future_status::ready;
}

}  // namespace apogee::comm

#endif  // APOGEE_COMM_FAILURE_RUN_WITHIN_H_
