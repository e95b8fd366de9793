// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/doctor/threads.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <thread>

#include "apogee/core/process/thread_team.h"

namespace apogee::tools::doctor {

#ifdef _OPENMP
namespace {

// Asks as loops do; returns the team size that a region gets with all settings in force.
int Granted(int asked) {
  int granted = 1;
#pragma omp parallel num_threads(asked)
  {
#pragma omp single
    granted = omp_get_num_threads();
  }
  return granted;
}

void Examine(Report& report) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const int asked = std::clamp(cores, 2, kMaxThreads);
  const int limit = omp_get_thread_limit();
  // Try this first: OpenMP ends the process if it cannot start a thread.
  const absl::Status status = StartTeam(asked);
  const bool exhausted = absl::IsResourceExhausted(status);
  const int granted = exhausted ? 1 : Granted(asked);
  report.Add("asked for", std::to_string(asked));
  report.Add("given to loops", exhausted ? "not tried" : std::to_string(granted));
  report.Add("given to products", status.ok() ? std::to_string(asked) : "refused");
  report.Add("OpenMP's limit", limit < kMaxThreads ? std::to_string(limit) : "none");
  report.Add("dynamic adjustment", omp_get_dynamic() != 0 ? "on" : "off");
  report.Add("active levels", std::to_string(omp_get_max_active_levels()));
  if (!status.ok()) {
    report.Advise("threads: " + Message(status));
  }
  const std::string slower = internal::Concat("loops get ", granted, " of ", asked,
                                              " threads; results are the same, but slower: ");
  if (omp_get_dynamic() != 0) {
    report.Advise((granted < asked ? slower : "loops may get fewer threads than asked for: ") +
                  "OMP_DYNAMIC is true; unset OMP_DYNAMIC");
  }
  if (omp_get_max_active_levels() < 1) {
    report.Advise(slower + "OMP_MAX_ACTIVE_LEVELS is 0; unset it, or set it to 1");
  }
}

}  // namespace

void AddThreads(Report& report) {
  report.Begin("threads of a rank");
  try {
    // On a thread of its own, because a rank's thread has its own OpenMP limit and settings.
    std::thread([&] { Examine(report); }).join();
  } catch (const std::system_error& error) {
    report.Add("given to loops", "none");
    report.Advise(internal::Concat("cannot start a thread: ", error.code().message(),
                                   "; raise the limit (ulimit -u, ulimit -v, pids.max)"));
  }
}

#else

void AddThreads(Report& report) {
  report.Begin("threads of a rank");
  report.Add("given to loops", "1: built without OpenMP");
}

#endif

}  // namespace apogee::tools::doctor
