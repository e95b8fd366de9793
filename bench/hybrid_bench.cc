// SPDX-License-Identifier: Apache-2.0

// The speed of tensor parallelism: tp ranks of one thread against one rank of tp threads, on
// gpt_bench's GPT with the same batch. Prints one JSON line.
//
//   hybrid_bench --tp-size 2 --rounds 3
//
// The two take turns within each round. `ratio` is the median over the rounds of the quotient of
// their median steps; above 1 the ranks are faster.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "apogee/bench/train_steps.h"
#include "apogee/core/blocking_waits.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/hybrid_parallel.h"

using namespace apogee;
using namespace apogee::bench;

int main(int argc, char** argv) {
  UseBlockingWaits(argv);
  std::string precision = "f32";
  int tp = 2, rounds = 3;
  int64_t steps = 3;
  CLI::App app("Speed of tensor parallelism against threads.");
  app.add_option("--precision", precision, "f32, bf16, fp16 or f64")->capture_default_str();
  app.add_option("--tp-size", tp, "Ranks of one thread; and threads of the one rank")
      ->capture_default_str()
      ->check(CLI::IsMember({2, 3, 6}));
  app.add_option("--rounds", rounds, "Rounds in which the variants take turns")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", steps, "Timed steps per turn")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  const MakePlugin plain = [&](const comm::World& world) {
    return std::make_unique<DdpPlugin>(
        world.group(), TrainingOptions{.precision = ValueOrThrow(ParsePrecision(precision))});
  };
  const MakePlugin hybrid = [&](const comm::World& world) {
    return std::make_unique<HybridParallelPlugin>(
        world, TrainingOptions{.precision = ValueOrThrow(ParsePrecision(precision))},
        HybridParallelOptions{.tp_size = tp});
  };
  try {
    const Turns turns = TakeTurns(
        rounds, [&] { return RunRanks(1, tp, plain, steps).step; },
        [&] { return RunRanks(tp, 1, hybrid, steps, tp).step; });
    const double tokens = static_cast<double>(kBatch * kBlock);
    std::printf(
        "{\"precision\": \"%s\", \"tp\": %d, \"threads_tokens_per_s\": %.1f, "
        "\"ranks_tokens_per_s\": %.1f, \"ratio\": %.3f}\n",
        precision.c_str(), tp, tokens / Median(turns.one_s), tokens / Median(turns.other_s),
        Median(turns.ratio));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hybrid_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
