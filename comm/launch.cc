#include "apogee/comm/launch.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "apogee/comm/local/local_world.h"
#include "apogee/tensor/cpu/cpu_context.h"

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

// What became of the ranks. The first error that is not the echo of a peer's is the one to tell.
class Outcomes {
 public:
  void Fail(int rank, const std::string& message, bool echo) {
    std::lock_guard lock(mutex_);
    failures_.push_back({rank, message, echo});
  }
  absl::Status ToStatus(int num_ranks) const {
    const Failure* first = nullptr;
    int same = 0;
    for (const Failure& failure : failures_) {
      if (first == nullptr || (first->echo && !failure.echo)) first = &failure;
    }
    if (first == nullptr) return absl::OkStatus();
    for (const Failure& failure : failures_) same += failure.message == first->message;
    if (same == num_ranks) return absl::InternalError(first->message);
    return absl::InternalError("rank " + std::to_string(first->rank) + ": " + first->message);
  }

 private:
  struct Failure {
    int rank;
    std::string message;
    bool echo;
  };
  mutable std::mutex mutex_;
  std::vector<Failure> failures_;
};

absl::Status Validate(const LaunchOptions& options) {
  if (options.num_ranks < 1) {
    return InvalidArgument("launch: the number of ranks must be at least 1, got ",
                           options.num_ranks);
  }
  if (options.threads_per_rank < 0) {
    return InvalidArgument("launch: threads_per_rank must be 0 (share the cores) or positive, got ",
                           options.threads_per_rank);
  }
  if (!(options.timeout_seconds > 0)) {
    return InvalidArgument("launch: timeout_seconds must be positive, got ",
                           options.timeout_seconds);
  }
  return absl::OkStatus();
}

absl::Status TooManyRanks(const LaunchOptions& options, const std::system_error& error) {
  return absl::ResourceExhaustedError(
      internal::Concat("launch: cannot start two threads for each of ", options.num_ranks,
                       " ranks: ", error.code().message(), "; use fewer ranks"));
}

}  // namespace

absl::Status launch(const LaunchOptions& options, const std::function<void(World&)>& fn) {
  APOGEE_RETURN_IF_ERROR(Validate(options));
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int num_threads = options.threads_per_rank > 0 ? options.threads_per_rank
                                                       : std::max(1, cores / options.num_ranks);
  const auto timeout =
      std::chrono::milliseconds(static_cast<int64_t>(options.timeout_seconds * 1000));
  std::optional<local::LocalWorld> made;
  try {
    made.emplace(options.num_ranks, timeout, options.trace);
  } catch (const std::system_error& error) {
    return TooManyRanks(options, error);
  }
  local::LocalWorld& local = *made;
  Outcomes outcomes;
  auto run = [&](int rank) {
    std::string reason = "returned before this collective";
    try {
      World world(
          rank, options.num_ranks, CpuContext({.num_threads = num_threads}),
          [&local, rank](const std::vector<int>& members) {
            return local.MakeGroup(rank, members);
          },
          options.trace);
      fn(world);
    } catch (const CommError& error) {
      outcomes.Fail(rank, error.what(), /*echo=*/true);
      reason = std::string("failed: ") + error.what();
    } catch (const std::exception& error) {
      outcomes.Fail(rank, error.what(), /*echo=*/false);
      reason = std::string("failed: ") + error.what();
    } catch (...) {
      outcomes.Fail(rank, "threw something that is not a std::exception", /*echo=*/false);
      reason = "failed";
    }
    local.Leave(rank, reason);
  };
  std::vector<std::thread> threads;
  absl::Status started;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    try {
      threads.emplace_back(run, rank);
    } catch (const std::system_error& error) {
      // Those that run already must not wait for those that never will.
      started = TooManyRanks(options, error);
      for (int r = rank; r < options.num_ranks; ++r) local.Leave(r, "could not be started");
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
  return started.ok() ? outcomes.ToStatus(options.num_ranks) : started;
}

}  // namespace apogee::comm
