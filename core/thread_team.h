// SPDX-License-Identifier: Apache-2.0

// How many threads OpenMP really gives, and an error where that is fewer than a rank asks for.
//
//   OkOrThrow(CheckNumThreads(8));   // before a rank starts: the bound, OMP_THREAD_LIMIT
//   OkOrThrow(StartTeam(8));         // on the rank's thread: its team can be, and is made
//   const ThreadTeam team(8);        // around code that must get exactly team.size() threads
//
// OpenMP may grant a region fewer threads than it asks for: because of OMP_DYNAMIC,
// OMP_THREAD_LIMIT or OMP_MAX_ACTIVE_LEVELS, or because a region runs already. ParallelFor computes
// the same whatever it is granted. Libraries that rely on the number that they were told, as oneDNN
// does, do not.
#ifndef APOGEE_CORE_THREAD_TEAM_H_
#define APOGEE_CORE_THREAD_TEAM_H_

#include "apogee/core/status.h"

namespace apogee {

// More threads than any machine has cores for.
inline constexpr int kMaxThreads = 1024;

// InvalidArgument for a number outside [1, kMaxThreads], FailedPrecondition for one above
// OMP_THREAD_LIMIT, which bounds each rank by itself. Starts nothing.
absl::Status CheckNumThreads(int num_threads);

// The threads of each of `num_ranks` where nobody says how many: the cores shared out, at least 1
// and no more than CheckNumThreads passes.
int ShareOfCores(int num_ranks);

// Tries to start this many threads, and makes the calling thread's team of them. ResourceExhausted
// where the system refuses: OpenMP itself would end the process. FailedPrecondition where their
// stacks are too small for the loops. Ranks of one process call it one after the other, so that
// each counts what the others have.
absl::Status StartTeam(int num_threads);

// While it lives, regions of the calling thread get size() threads, and that is the number that
// OpenMP names to libraries (omp_get_max_threads): OMP_DYNAMIC and OMP_MAX_ACTIVE_LEVELS=0 do not
// count. What was set before is put back. size() is `num_threads`, or 1 within a parallel region.
// Throws Error where OpenMP gives fewer: its limits may have changed since CheckNumThreads.
class ThreadTeam {
 public:
  explicit ThreadTeam(int num_threads);
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

#endif  // APOGEE_CORE_THREAD_TEAM_H_
