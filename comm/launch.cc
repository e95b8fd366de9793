// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/launch.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "apogee/comm/backend.h"
#include "apogee/comm/failure/outcomes.h"
#include "apogee/comm/local/local_world.h"
#include "apogee/comm/local/rank_watch.h"
#include "apogee/comm/process/process_world.h"
#include "apogee/comm/process/starter.h"
#include "apogee/core/process/thread_team.h"
#include "apogee/tensor/make_context.h"

namespace apogee::comm {

World::World(int rank, int size, ContextPtr context, MakeGroup make_group, Trace* trace)
    : rank_(rank),
      size_(size),
      context_(std::move(context)),
      make_group_(std::move(make_group)),
      trace_(trace) {
  std::vector<int> all(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) all[static_cast<size_t>(i)] = i;
  group_ = NewGroup(all);
}

GroupPtr World::NewGroup(const std::vector<int>& members) const {
  if (members.size() == 1 && members[0] == rank_) return nullptr;
  return make_group_(members);
}

namespace {

// The most that can be added to the time of day in clocks that count nanoseconds.
constexpr double kMaxTimeoutSeconds = 1e9;

absl::Status Validate(const LaunchOptions& options) {
  if (options.num_ranks < 0) {
    return InvalidArgument(
        "launch: the number of ranks must be at least 1, or 0 for as many as were started, got ",
        options.num_ranks);
  }
  if (options.threads_per_rank < 0) {
    return InvalidArgument("launch: threads_per_rank must be 0 (share the cores) or positive, got ",
                           options.threads_per_rank);
  }
  if (!(options.timeout_seconds > 0 && options.timeout_seconds <= kMaxTimeoutSeconds)) {
    return InvalidArgument("launch: timeout_seconds must be positive and at most ",
                           kMaxTimeoutSeconds, ", got ", options.timeout_seconds);
  }
  return absl::OkStatus();
}

absl::Status TooManyRanks(const LaunchOptions& options, const std::exception& error) {
  const auto* const of_system = dynamic_cast<const std::system_error*>(&error);
  return absl::ResourceExhaustedError(internal::Concat(
      "launch: cannot start two threads for each of ", options.num_ranks,
      " ranks: ", of_system != nullptr ? of_system->code().message() : "out of memory",
      "; use fewer ranks, or raise the limit (ulimit -u, ulimit -v, pids.max of "
      "the cgroup)"));
}

absl::Status LaunchThreads(const LaunchOptions& options, int num_threads,
                           const std::function<void(World&)>& fn) {
  const auto timeout =
      std::chrono::milliseconds(static_cast<int64_t>(options.timeout_seconds * 1000));
  APOGEE_ASSIGN_OR_RETURN(const DeviceName device, ParseDevice(options.device));
  std::vector<ContextPtr> contexts;
  for (int r = 0; r < options.num_ranks; ++r) {
    APOGEE_ASSIGN_OR_RETURN(contexts.emplace_back(), MakeContext(device.For(0), num_threads));
  }
  local::FlightRecords records;
  for (int r = 0; r < options.num_ranks; ++r) {
    records.push_back(
        std::make_shared<FlightRecord>(r, options.num_ranks, timeout, options.flight_record_dir));
    APOGEE_RETURN_IF_ERROR(records.back()->Prepare());
  }
  local::RankWatch watch(records, timeout);
  std::optional<local::LocalWorld> made;
  try {
    made.emplace(records, timeout, options.trace);
  } catch (const std::exception& error) {
    return TooManyRanks(options, error);
  }
  local::LocalWorld& local = *made;
  Outcomes outcomes;
  std::mutex starting;
  // `failure`: empty if the rank's function has returned.
  auto end = [&](int rank, const std::string& failure) {
    RetryOutOfMemory([&] {
      local.Leave(rank, failure.empty() ? "returned before this collective" : "failed: " + failure);
    });
    RetryOutOfMemory([&] { watch.Ended(rank, failure); });
  };
  auto run = [&](int rank) {
    end(rank, RunRank(rank, outcomes, [&] {
          {
            std::lock_guard lock(starting);
            OkOrThrow(StartTeam(num_threads));
          }
          World world(
              rank, options.num_ranks, std::move(contexts[static_cast<size_t>(rank)]),
              [&local, rank](const std::vector<int>& members) {
                return local.MakeGroup(rank, members);
              },
              options.trace);
          fn(world);
        }));
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(options.num_ranks));
  absl::Status started;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    try {
      threads.emplace_back(run, rank);
    } catch (const std::exception& error) {
      // Threads that already run must not wait for those that will never start.
      RetryOutOfMemory([&] { started = TooManyRanks(options, error); });
      for (int r = rank; r < options.num_ranks; ++r) end(r, "could not be started");
      break;
    }
  }
  watch.Join();
  for (std::thread& thread : threads) thread.join();
  const absl::Status status = started.ok() ? outcomes.ToStatus(options.num_ranks) : started;
  if (!status.ok()) {
    for (const auto& record : records) record->WriteWithin(std::chrono::seconds(2));
  }
  return status;
}

}  // namespace

absl::StatusOr<Processes> StartedProcesses() { return process::ThisProcess(); }

absl::Status launch(const LaunchOptions& options, const std::function<void(World&)>& fn) {
  APOGEE_RETURN_IF_ERROR(Validate(options));
  APOGEE_ASSIGN_OR_RETURN(const Processes processes, StartedProcesses());
  const int started = processes.size;
  LaunchOptions settled = options;
  if (options.num_ranks == 0) settled.num_ranks = started;
  if (started > 1 && settled.num_ranks != started) {
    APOGEE_ASSIGN_OR_RETURN(const process::Started by, process::StartedInEnvironment());
    return InvalidArgument("launch: ", options.num_ranks, " ranks are asked for, but ",
                           process::NameOf(by.by), " started ", started,
                           " processes, one for each rank; make the two "
                           "numbers equal, or leave the ranks out");
  }
  APOGEE_RETURN_IF_ERROR(ChooseBackend(settled, started).status());
  // Processes cannot know how many of them share their machine. They are bound to their own cores
  // if their starter binds them.
  const int num_threads =
      options.threads_per_rank > 0 ? options.threads_per_rank : ShareOfCores(settled.num_ranks);
  return started > 1 ? process::Launch(settled, num_threads, fn)
                     : LaunchThreads(settled, num_threads, fn);
}

}  // namespace apogee::comm
