// SPDX-License-Identifier: Apache-2.0

#include "apogee/plan/check.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <mutex>

#include "apogee/core/process_memory.h"
#include "apogee/plan/train_steps.h"

namespace apogee::plan {
namespace {

constexpr double kSecondsOfARow = 2;

// The kernel forgets the highest resident size; man 5 proc. Needs no privilege. Without /proc the
// peak stays that of the whole process.
void ForgetPeak() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace

void CheckRow(const TrainingSetup& setup, int threads_per_rank, PlanRow& row) {
  using Clock = std::chrono::steady_clock;
  const std::vector<int> roles = row.candidate.Roles();
  const int num_steps = row.step_seconds > 0
                            ? std::clamp(static_cast<int>(kSecondsOfARow / row.step_seconds), 4, 40)
                            : 2;
  std::vector<Clock::time_point> starts;  // of rank 0's steps
  std::mutex mutex;
  const auto run = [&](comm::World& world) {
    TrainSteps(setup, row.candidate, world, num_steps, [&](int) {
      if (world.rank() == 0) starts.push_back(Clock::now());
    });
    if (!std::ranges::binary_search(roles, world.rank())) return;
    const std::lock_guard lock(mutex);
    row.measured.push_back(
        {.rank = world.rank(), .memory = world.context()->ledger().figures(), .traffic = {}});
  };
  ForgetPeak();
  const auto before = ReadProcessMemory();
  const absl::Status status = comm::launch({.num_ranks = row.candidate.num_ranks,
                                            .threads_per_rank = threads_per_rank,
                                            .comm = comm::Backend::kLocal},
                                           run);
  if (const auto after = ReadProcessMemory(); before.ok() && after.ok()) {
    row.measured_process_bytes = after->peak_own_bytes() - before->own_bytes();
  }
  std::ranges::sort(row.measured, {}, &RankPlan::rank);
  if (!status.ok()) row.refusal = "the real run failed: " + Message(status);
  std::vector<double> seconds;  // without the first step, in which states are made
  for (size_t i = 2; i < starts.size(); ++i) {
    seconds.push_back(std::chrono::duration<double>(starts[i] - starts[i - 1]).count());
  }
  if (seconds.empty()) return;
  std::ranges::nth_element(seconds, seconds.begin() + static_cast<int>(seconds.size() / 2));
  row.measured_step_seconds = seconds[seconds.size() / 2];
}

}  // namespace apogee::plan
