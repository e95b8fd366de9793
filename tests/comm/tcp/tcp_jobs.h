// SPDX-License-Identifier: Apache-2.0

// Jobs over TCP whose ranks are threads of a test.
//
//   const uint16_t port = FreePort();
//   const auto statuses =
//       OnRanks(3, [&](int rank) { return Meet(JobOf(rank, 3, port)).status(); });
#ifndef APOGEE_TESTS_COMM_TCP_TCP_JOBS_H_
#define APOGEE_TESTS_COMM_TCP_TCP_JOBS_H_

#include <functional>
#include <thread>
#include <vector>

#include "apogee/comm/tcp/job.h"
#include "apogee/comm/tcp/socket.h"

namespace apogee::comm::tcp {

// Free a moment ago.
inline uint16_t FreePort() {
  const Socket listener = ValueOrThrow(Listen("127.0.0.1", 0));
  return ValueOrThrow(PortOf(listener));
}

inline Job JobOf(int rank, int size, uint16_t port, double seconds = 20) {
  return {.rank = rank,
          .size = size,
          .host = "127.0.0.1",
          .port = port,
          .token = "the token",
          .timeout = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000))};
}

// Runs `fn` once per rank. Returns the ranks' results.
template <typename Fn>
auto OnRanks(int size, const Fn& fn) {
  std::vector<decltype(fn(0))> results(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { results[static_cast<size_t>(rank)] = fn(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace apogee::comm::tcp

#endif  // APOGEE_TESTS_COMM_TCP_TCP_JOBS_H_
