// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/local/rank_watch.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "apogee/comm/failure/give_up.h"

namespace apogee::comm::local {

RankWatch::RankWatch(FlightRecords records, std::chrono::milliseconds timeout)
    : records_(std::move(records)), timeout_(timeout), running_(records_.size(), true) {}

void RankWatch::Ended(int rank, const std::string& failure) {
  records_[static_cast<size_t>(rank)]->EndFunction(failure.empty() ? "returned"
                                                                   : "failed: " + failure);
  std::lock_guard lock(mutex_);
  if (!failure.empty()) {
    failures_.push_back("rank " + std::to_string(rank) + ": " + failure);
    if (!failed_at_) failed_at_ = FlightRecord::Clock::now();
  }
  running_[static_cast<size_t>(rank)] = false;
  ended_.notify_all();
}

void RankWatch::Join() {
  std::unique_lock lock(mutex_);
  while (std::ranges::count(running_, true) > 0) {
    if (!failed_at_) {
      ended_.wait(lock);
      continue;
    }
    const auto now = FlightRecord::Clock::now();
    auto first = now + timeout_;
    for (size_t r = 0; r < running_.size(); ++r) {
      if (!running_[r]) continue;
      const FlightRecord& record = *records_[r];
      const auto at = GiveUpAt(record.waited_for(), *failed_at_, record.active_at(), timeout_);
      if (now > at) GiveUp(r);
      first = std::min(first, at);
    }
    ended_.wait_until(lock, first + std::chrono::milliseconds(1));
  }
}

void RankWatch::GiveUp(size_t rank) const {
  std::string text;
  for (const std::string& failure : failures_) text += "apogee: " + failure + "\n";
  const std::chrono::duration<double> idle =
      FlightRecord::Clock::now() - records_[rank]->active_at();
  text += "apogee: rank " + std::to_string(rank) + " is still in its function and has called no " +
          "collective for " + std::to_string(idle.count()).substr(0, 5) +
          " s; a thread cannot be ended, so the process ends with exit code " +
          std::to_string(kExitCode) + "\n";
  std::fputs(text.c_str(), stderr);
  for (const auto& record : records_) record->WriteWithin(std::chrono::milliseconds(200));
  std::_Exit(kExitCode);
}

}  // namespace apogee::comm::local
