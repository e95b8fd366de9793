// SPDX-License-Identifier: Apache-2.0

// How the ranks of a launch ended, and which error to report. Private to comm.
//
//   const std::string failure = RunRank(rank, outcomes, [&] { fn(world); });
#ifndef APOGEE_COMM_FAILURE_OUTCOMES_H_
#define APOGEE_COMM_FAILURE_OUTCOMES_H_

#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::comm {

// What ended a rank's function.
struct RankFailure {
  std::string message;
  // The rank failed only because of a peer.
  bool echo = false;
};

// Has a remedy in its message if memory has run out. `thrown` is not null. Throws std::bad_alloc if
// there is no memory for the message.
RankFailure FailureOf(const std::exception_ptr& thrown);

// A reserve of address space that Release gives back, so that a failure can be reported when memory
// has run out.
class Reserve {
 public:
  Reserve();
  ~Reserve() { Release(); }
  Reserve(const Reserve&) = delete;
  Reserve& operator=(const Reserve&) = delete;
  void Release();

 private:
  void* block_;
};

class Outcomes {
 public:
  void Fail(int rank, RankFailure failure);
  // The first failure that is no echo, else the first echo.
  absl::Status ToStatus(int num_ranks) const;

 private:
  struct Failed : RankFailure {
    int rank;
  };
  mutable std::mutex mutex_;
  std::vector<Failed> failures_;
};

// Sleeps after attempt number `attempt` of a report that found no memory. Ends the process with
// kExitCode after the last attempt.
void WaitForMemory(int attempt);

// Calls `report` until it finds memory. Ranks are threads of one process, so another rank can take
// the memory that this rank's reserve gave back; it then fails, too, and gives back its own.
// `report` may have done a part of its work when it throws std::bad_alloc.
template <typename Report>
void RetryOutOfMemory(const Report& report) {
  for (int attempt = 1;; ++attempt) {
    try {
      return report();
    } catch (const std::bad_alloc&) {
      WaitForMemory(attempt);
    }
  }
}

// Runs a rank's function on its thread. Notes what it threw in `outcomes`, and returns the message;
// "" if it returned. Needs no memory to begin.
template <typename Fn>
std::string RunRank(int rank, Outcomes& outcomes, const Fn& fn) {
  Reserve reserve;
  std::exception_ptr thrown;
  try {
    fn();
  } catch (...) {
    thrown = std::current_exception();
  }
  reserve.Release();
  RankFailure failure;
  if (thrown) {
    RetryOutOfMemory([&] {
      failure = FailureOf(thrown);
      outcomes.Fail(rank, failure);
    });
  }
  return std::move(failure.message);
}

}  // namespace apogee::comm

#endif  // APOGEE_COMM_FAILURE_OUTCOMES_H_
