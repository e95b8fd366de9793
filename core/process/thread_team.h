// SPDX-License-Identifier: Apache-2.0

// Makes sure that OpenMP gives a rank as many threads as it asks for, or else reports an error.
//
//   OkOrThrow(CheckNumThreads(8));   // before a rank starts: checks limits, starts nothing
//   OkOrThrow(StartTeam(8));         // on the rank's thread: starts its threads
//   const ThreadTeam team(8);        // around code that must get exactly team.size() threads
//
// OpenMP may give a parallel region fewer threads than it asks for: because of OMP_DYNAMIC,
// OMP_THREAD_LIMIT or OMP_MAX_ACTIVE_LEVELS, or because the code already runs in a parallel region.
// ParallelFor computes the same result with any number of threads. Libraries such as oneDNN do not:
// they rely on the number they were told.
#ifndef APOGEE_CORE_PROCESS_THREAD_TEAM_H_
#define APOGEE_CORE_PROCESS_THREAD_TEAM_H_

#include "apogee/core/status.h"

namespace apogee {

// More threads than any machine has cores for.
inline constexpr int kMaxThreads = 1024;

// Returns InvalidArgument for a number outside [1, kMaxThreads], and FailedPrecondition for one
// above OMP_THREAD_LIMIT. That limit applies to each rank separately. Starts nothing.
absl::Status CheckNumThreads(int num_threads);

// Default number of threads per rank: the machine's cores divided by `num_ranks`, at least 1 and at
// most the limit of CheckNumThreads.
int ShareOfCores(int num_ranks);

// Starts this many threads as the calling thread's team. Returns ResourceExhausted if the system
// refuses a thread (OpenMP itself would end the process), and FailedPrecondition if the threads'
// stacks are too small for the loops. Ranks of one process must call it one after the other, so
// that each finds the threads of the earlier ones running.
absl::Status StartTeam(int num_threads);

// While it lives, parallel regions of the calling thread get size() threads, and libraries see that
// number in omp_get_max_threads(). OMP_DYNAMIC and OMP_MAX_ACTIVE_LEVELS=0 have no effect
// meanwhile; the destructor restores them. size() is `num_threads`, or 1 inside a parallel region.
// Throws Error if OpenMP gives fewer: its limits may have changed since CheckNumThreads.
class ThreadTeam {
 public:
  // `starts`: false in a dry context, in which libraries only plan with this number. No thread is
  // started then, and nothing is checked.
  explicit ThreadTeam(int num_threads, bool starts = true);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return size_; }

 private:
  void PutBack() const;

  [[maybe_unused]] int max_threads_before_ = 1, dynamic_before_ = 0, levels_before_ = 1;
  int size_ = 1;
};

}  // namespace apogee

#endif  // APOGEE_CORE_PROCESS_THREAD_TEAM_H_
