// SPDX-License-Identifier: Apache-2.0

// The time of one all-reduce over the ranks, relative to the time to copy the bytes that it must
// move. Prints one JSON line.
//
//   comm_bench --ranks 4 --mib 64              # ranks are threads
//   mpirun -np 4 comm_bench --mib 64           # ranks are processes
//
// An all-reduce of n ranks reads n tensors and writes n tensors. So does the copy: every rank's
// thread copies its own tensor, all at the same time. The two take turns. The times are medians,
// the ratio is the median of the pairs' ratios. `small_all_reduce_us` is the time of an all-reduce
// of one number: fingerprint, rendezvous and waking up, almost without data.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "apogee/bench/median.h"
#include "apogee/comm/launch.h"

using namespace apogee;

namespace {

using apogee::bench::Median;

using Clock = std::chrono::steady_clock;

// Seconds from when all ranks are ready until all have run fn.
template <typename Fn>
double TimeTogether(comm::Group& group, const Fn& fn) {
  group.Barrier();
  const Clock::time_point start = Clock::now();
  fn();
  group.Barrier();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Result {
  std::vector<double> copy, reduce, ratio, small;
};

void Measure(const comm::World& world, int64_t mib, int pairs, Result& result) {
  const int64_t numel = mib << 18;  // f32
  const Tensor x = Tensor::Full({numel}, DType::kF32, 0, world.context());
  const Tensor y = Tensor::Full({numel}, DType::kF32, 0, world.context());
  comm::Group& group = *world.group();
  for (int pair = -2; pair < pairs; ++pair) {  // the first two warm up
    double copy = 0, reduce = 0;
    auto run_copy = [&] {
      copy = TimeTogether(group,
                          [&] { std::memcpy(y.raw(), x.raw(), static_cast<size_t>(x.bytes())); });
    };
    auto run_reduce = [&] { reduce = TimeTogether(group, [&] { group.AllReduce(x); }); };
    if (pair % 2 == 0) {
      run_copy();
      run_reduce();
    } else {
      run_reduce();
      run_copy();
    }
    if (world.rank() != 0 || pair < 0) continue;
    result.copy.push_back(copy);
    result.reduce.push_back(reduce);
    result.ratio.push_back(reduce / copy);
  }
  const Tensor one = Tensor::Full({1}, DType::kF32, 0, world.context());
  for (int pair = 0; pair < pairs; ++pair) {
    constexpr int kCalls = 200;
    const double seconds = TimeTogether(group, [&] {
      for (int i = 0; i < kCalls; ++i) group.AllReduce(one);
    });
    if (world.rank() == 0) result.small.push_back(seconds / kCalls);
  }
}

}  // namespace

int main(int argc, char** argv) {
  int ranks = 2, pairs = 15;
  int64_t mib = 64;
  const auto process = ValueOrThrow(comm::StartedProcesses());
  if (process.size > 1) ranks = process.size;
  CLI::App app("Speed of all-reduce between ranks.");
  app.add_option("--ranks", ranks, "Ranks")->capture_default_str()->check(CLI::Range(2, 64));
  app.add_option("--mib", mib, "MiB of f32 per rank")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--pairs", pairs, "Timed pairs of copy and all-reduce")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  Result result;
  const absl::Status status =
      comm::launch({.num_ranks = ranks, .threads_per_rank = 1},
                   [&](comm::World& world) { Measure(world, mib, pairs, result); });
  if (!status.ok()) {
    std::fprintf(stderr, "comm_bench: %s\n", Message(status).c_str());
    return 1;
  }
  if (process.rank != 0) return 0;  // rank 0 has the times
  std::printf(
      "{\"ranks\": %d, \"mib\": %lld, \"copy_ms\": %.3f, \"all_reduce_ms\": %.3f, "
      "\"ratio\": %.3f, \"small_all_reduce_us\": %.2f}\n",
      ranks, static_cast<long long>(mib), Median(result.copy) * 1e3, Median(result.reduce) * 1e3,
      Median(result.ratio), Median(result.small) * 1e6);
  return 0;
}
