// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/dry/dry_launch.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <system_error>
#include <thread>

#include "apogee/comm/dry/dry_world.h"
#include "apogee/comm/failure/outcomes.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee::comm {

absl::Status DryLaunch(const DryOptions& options, const std::function<void(World&)>& fn) {
  DryOptions settled = options;
  if (options.num_ranks < 1) {
    return InvalidArgument("dry run: the number of ranks must be at least 1, got ",
                           options.num_ranks);
  }
  if (settled.ranks.empty()) {
    settled.ranks.resize(static_cast<size_t>(options.num_ranks));
    std::iota(settled.ranks.begin(), settled.ranks.end(), 0);
  }
  const bool ascending =
      std::ranges::adjacent_find(settled.ranks, std::greater_equal()) == settled.ranks.end();
  if (!ascending || settled.ranks.front() < 0 || settled.ranks.back() >= options.num_ranks) {
    return InvalidArgument("dry run: the ranks that run must be ascending and in a world of ",
                           options.num_ranks);
  }
  dry::DryWorld dry(settled);
  Outcomes outcomes;
  const auto run = [&](int rank) {
    const std::string failure = RunRank(rank, outcomes, [&] {
      World world(
          rank, options.num_ranks,
          CpuContext({.num_threads = options.threads_per_rank, .dry = true}),
          [&dry, rank](const std::vector<int>& members) { return dry.MakeGroup(rank, members); });
      fn(world);
    });
    RetryOutOfMemory([&] {
      dry.Leave(rank, failure.empty() ? "returned before this collective" : "failed: " + failure);
    });
  };
  std::vector<std::thread> threads;
  threads.reserve(settled.ranks.size());
  absl::Status started;
  for (const int rank : settled.ranks) {
    try {
      if (started.ok()) threads.emplace_back(run, rank);
    } catch (const std::system_error& error) {
      started = absl::ResourceExhaustedError(
          internal::Concat("dry run: cannot start a thread for each of ", settled.ranks.size(),
                           " ranks: ", error.code().message(), "; raise the limit (ulimit -u)"));
    }
    // Threads that already run must not wait for those that will never start.
    if (!started.ok()) dry.Leave(rank, "could not be started");
  }
  for (std::thread& thread : threads) thread.join();
  return started.ok() ? outcomes.ToStatus(options.num_ranks) : started;
}

}  // namespace apogee::comm
