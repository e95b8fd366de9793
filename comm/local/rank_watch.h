// SPDX-License-Identifier: Apache-2.0

// RankWatch: waits until every rank of this process has ended, and no longer than that is worth it.
//
//   RankWatch watch(records, timeout);
//   watch.Ended(rank, "");                 // on the rank's thread; or why it failed
//   watch.Join();                          // on the launching one
//
// A thread cannot be ended. When a function has failed and another does not come to its end, Join
// prints what happened, writes the flight records and ends the process with kExitCode (GiveUpAt
// says when). Private to comm/local; made by launch().
#ifndef APOGEE_COMM_LOCAL_RANK_WATCH_H_
#define APOGEE_COMM_LOCAL_RANK_WATCH_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "apogee/comm/local/local_world.h"

namespace apogee::comm::local {

class RankWatch {
 public:
  RankWatch(FlightRecords records, std::chrono::milliseconds timeout);

  void Ended(int rank, const std::string& failure);
  void Join();

 private:
  [[noreturn]] void GiveUp(size_t rank) const;

  FlightRecords records_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<bool> running_;
  std::vector<std::string> failures_;  // "rank 2: why", the first one first
  std::optional<FlightRecord::Clock::time_point> failed_at_;
};

}  // namespace apogee::comm::local

#endif  // APOGEE_COMM_LOCAL_RANK_WATCH_H_
