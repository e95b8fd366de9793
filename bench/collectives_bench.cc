// SPDX-License-Identifier: Apache-2.0

// The time of our collectives by size, measured as mpi_collectives measures MPI's; prints one JSON
// line.
//
//   mpirun -np 4 collectives_bench all_reduce 1024 67108864     # bytes of the whole tensor
//   collectives_bench all_reduce 1024 --ranks 4                 # ranks are threads
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "apogee/comm/launch.h"

using namespace apogee;

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 7;
constexpr double kRoundSeconds = 0.2;

class Bench {
 public:
  Bench(const comm::World& world, const std::string& op, int64_t bytes)
      : group_(*world.group()),
        op_(op),
        part_(Tensor::Zeros({std::max<int64_t>(1, bytes / 4 / world.size())}, DType::kF32,
                            world.context())),
        whole_(Tensor::Zeros({part_.numel() * world.size()}, DType::kF32, world.context())),
        once_(Tensor::Zeros({1}, DType::kF64, world.context())) {}

  // Microseconds per call.
  double Measure() {
    SecondsOf(1);
    once_.data<double>()[0] = SecondsOf(3) / 3;
    group_.Broadcast(once_, 0);
    const int calls =
        std::clamp(static_cast<int>(kRoundSeconds / once_.data<double>()[0]), 1, 20000);
    std::vector<double> seconds;
    for (int round = 0; round < kRounds; ++round) seconds.push_back(SecondsOf(calls) / calls);
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2] * 1e6;
  }

 private:
  void Call() {
    if (op_ == "all_reduce") {
      group_.AllReduce(whole_);
    } else if (op_ == "reduce_scatter") {
      group_.ReduceScatter(part_, whole_);
    } else {
      group_.AllGather(whole_, part_);
    }
  }
  double SecondsOf(int calls) {
    group_.Barrier();
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) Call();
    group_.Barrier();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  comm::Group& group_;
  std::string op_;
  Tensor part_, whole_, once_;
};

}  // namespace

int main(int argc, char** argv) {
  int ranks = 2;
  std::string op;
  std::vector<int64_t> bytes;
  const auto process = ValueOrThrow(comm::StartedProcesses());
  if (process.size > 1) ranks = process.size;
  CLI::App app("Speed of collectives between ranks.");
  app.add_option("--ranks", ranks, "Ranks")->capture_default_str()->check(CLI::Range(2, 64));
  app.add_option("op", op, "Collective")
      ->required()
      ->check(CLI::IsMember({"all_reduce", "reduce_scatter", "all_gather"}));
  app.add_option("bytes", bytes, "Bytes of the whole tensor, of f32")
      ->required()
      ->check(CLI::Range(int64_t{4}, int64_t{1} << 32));
  CLI11_PARSE(app, argc, argv);
  std::string line;
  const absl::Status status =
      comm::launch({.num_ranks = ranks, .threads_per_rank = 1}, [&](comm::World& world) {
        for (const int64_t n : bytes) {
          const double us = Bench(world, op, n).Measure();
          if (world.rank() != 0) continue;
          char text[64];
          std::snprintf(text, sizeof(text), "%s\"%lld\": %.3f", line.empty() ? "" : ", ",
                        static_cast<long long>(n), us);
          line += text;
        }
      });
  if (!status.ok()) {
    std::fprintf(stderr, "collectives_bench: %s\n", Message(status).c_str());
    return 1;
  }
  if (process.rank != 0) return 0;  // rank 0 has the times
  std::printf("{\"ranks\": %d, \"op\": \"%s\", \"us\": {%s}}\n", ranks, op.c_str(), line.c_str());
  return 0;
}
