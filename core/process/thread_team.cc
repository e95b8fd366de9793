// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/process/thread_team.h"

#include <pthread.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace apogee {
namespace {

int NumCores() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

int ThreadLimit() {
#ifdef _OPENMP
  return omp_get_thread_limit();
#else
  return std::numeric_limits<int>::max();
#endif
}

std::string FewerGranted(int asked, int granted) {
  return internal::Concat(
      "a rank asks for ", asked, " threads, but OpenMP gives it ", granted,
      granted == ThreadLimit() ? internal::Concat(": OMP_THREAD_LIMIT=", granted, " is set") : "",
      "; unset OMP_THREAD_LIMIT, or ask for at most ", granted,
      granted == 1 ? " thread" : " threads", " per rank (--threads, num_threads)");
}

// Size of the calling thread's stack; 0 if unknown.
size_t StackBytes() {
  size_t bytes = 0;
#ifdef __linux__
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return 0;
  void* lowest = nullptr;
  if (pthread_attr_getstack(&attributes, &lowest, &bytes) != 0) bytes = 0;
  pthread_attr_destroy(&attributes);
#endif
  return bytes;
}

absl::Status CheckStack(size_t bytes, const std::string& whose, const std::string& remedy) {
  constexpr size_t kMinBytes = 256 << 10;
  if (bytes == 0 || bytes >= kMinBytes) return absl::OkStatus();
  return absl::FailedPreconditionError(internal::Concat(
      whose, " has a stack of ", bytes >> 10, " KiB, needs ", kMinBytes >> 10, " KiB; ", remedy));
}

#ifdef _OPENMP
// Starts this many threads at once, besides the calling thread.
absl::Status TryToStart(int num_threads) {
  std::mutex mutex;
  std::condition_variable may_end;
  bool end = false;
  std::vector<std::thread> threads;
  absl::Status status;
  try {
    threads.reserve(static_cast<size_t>(num_threads));
    for (int i = 0; i < num_threads; ++i) {
      threads.emplace_back([&] {
        std::unique_lock lock(mutex);
        may_end.wait(lock, [&] { return end; });
      });
    }
  } catch (const std::exception& error) {  // std::system_error or std::bad_alloc
    status = absl::ResourceExhaustedError(internal::Concat(
        "cannot start thread ", threads.size() + 2, " of ", num_threads + 1, " of this rank: ",
        error.what(), "; ask for fewer threads (--threads, num_threads) or ranks, or raise the ",
        "limit (ulimit -u, ulimit -v, pids.max of the cgroup)"));
  }
  {
    std::lock_guard lock(mutex);
    end = true;
  }
  may_end.notify_all();
  for (std::thread& thread : threads) thread.join();
  return status;
}

// How many threads a region of the calling thread gets, with dynamic adjustment off and one active
// level allowed.
int Granted(int asked) {
  int granted = 1;
#pragma omp parallel num_threads(asked)
  {
#pragma omp single
    granted = omp_get_num_threads();
  }
  return granted;
}
#endif

}  // namespace

absl::Status CheckNumThreads(int num_threads) {
  if (num_threads < 1)
    return InvalidArgument("a context needs at least one thread, got ", num_threads);
  if (num_threads > kMaxThreads) {
    return InvalidArgument("a rank may have at most ", kMaxThreads, " threads, got ", num_threads,
                           "; this machine has ", NumCores(),
                           " cores, and more threads than cores wait for each other");
  }
  if (num_threads > ThreadLimit()) {
    return absl::FailedPreconditionError(FewerGranted(num_threads, ThreadLimit()));
  }
  return absl::OkStatus();
}

int ShareOfCores(int num_ranks) {
  return std::clamp(NumCores() / num_ranks, 1, std::min(kMaxThreads, std::max(1, ThreadLimit())));
}

absl::Status StartTeam(int num_threads) {
  APOGEE_RETURN_IF_ERROR(CheckNumThreads(num_threads));
  APOGEE_RETURN_IF_ERROR(CheckStack(StackBytes(), "the thread of a rank", "ulimit -s 8192"));
#ifdef _OPENMP
  if (num_threads == 1) return absl::OkStatus();
  APOGEE_RETURN_IF_ERROR(TryToStart(num_threads - 1));
  const ThreadTeam team(num_threads);
  size_t least = std::numeric_limits<size_t>::max();
#pragma omp parallel num_threads(team.size()) reduction(min : least)
  least = StackBytes();
  APOGEE_RETURN_IF_ERROR(CheckStack(least, "a thread of OpenMP", "unset OMP_STACKSIZE"));
#endif
  return absl::OkStatus();
}

#ifdef _OPENMP

ThreadTeam::ThreadTeam(int num_threads, bool starts)
    : max_threads_before_(omp_get_max_threads()),
      dynamic_before_(omp_get_dynamic()),
      levels_before_(omp_get_max_active_levels()) {
  if (num_threads > 1 && !omp_in_parallel()) {
    if (dynamic_before_ != 0) omp_set_dynamic(0);
    if (levels_before_ < 1) omp_set_max_active_levels(1);
    // A thread's limit does not change: a number that was granted once is granted again.
    thread_local int known = 1;
    if (starts && num_threads > known) {
      if (const int granted = Granted(num_threads); granted < num_threads) {
        PutBack();
        Throw(FewerGranted(num_threads, granted));
      }
      known = num_threads;
    }
    size_ = num_threads;
  }
  omp_set_num_threads(size_);
}

ThreadTeam::~ThreadTeam() { PutBack(); }

void ThreadTeam::PutBack() const {
  omp_set_num_threads(max_threads_before_);
  if (dynamic_before_ != 0) omp_set_dynamic(dynamic_before_);
  if (levels_before_ < 1) omp_set_max_active_levels(levels_before_);
}

#else

ThreadTeam::ThreadTeam(int, bool) {}
ThreadTeam::~ThreadTeam() = default;
void ThreadTeam::PutBack() const {}

#endif

}  // namespace apogee
