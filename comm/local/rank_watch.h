// SPDX-License-Identifier: Apache-2.0

// RankWatch: waits until every rank of this process has ended, with a limit once one has failed.
//
//   RankWatch watch(records, timeout);
//   watch.Ended(rank, "");                 // on the rank's thread; with the reason if it failed
//   watch.Join();                          // on the launching thread
//
// A thread cannot be ended from outside. If one function has failed and another does not end in
// time (GiveUpAt), Join prints the error, writes the flight records and ends the process with
// kExitCode. Private to comm/local; made by launch().
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
  std::vector<std::string> failures_;  // "rank 2: why", in the order of failing
  std::optional<FlightRecord::Clock::time_point> failed_at_;
};

}  // namespace apogee::comm::local

#endif  // APOGEE_COMM_LOCAL_RANK_WATCH_H_
