// SPDX-License-Identifier: Apache-2.0

// The speed of data parallelism: N ranks of one thread against one rank of N threads, on
// gpt_bench's GPT with the same global batch. Prints one JSON line.
//
//   ddp_bench --ranks 2 --rounds 3
//
// The two take turns within each round. `ratio` is the median over the rounds of the quotient of
// their median steps; above 1 the ranks are faster. `call_share` is the share of a step that
// fingerprint and rendezvous take: the number of collectives per step times the time of an
// all-reduce of one number.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "apogee/bench/train_steps.h"
#include "apogee/core/blocking_waits.h"
#include "apogee/plugins/ddp.h"

using namespace apogee;
using namespace apogee::bench;

int main(int argc, char** argv) {
  UseBlockingWaits(argv);
  std::string precision = "f32";
  int ranks = 2, rounds = 3;
  int64_t steps = 3;
  CLI::App app("Speed of data parallelism against threads.");
  app.add_option("--precision", precision, "f32, bf16, fp16 or f64")->capture_default_str();
  app.add_option("--ranks", ranks, "Ranks of one thread; and threads of the one rank")
      ->capture_default_str()
      ->check(CLI::IsMember({2, 4, 8}));
  app.add_option("--rounds", rounds, "Rounds in which the variants take turns")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", steps, "Timed steps per turn")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  const MakePlugin ddp = [&](const comm::World& world) {
    return std::make_unique<DdpPlugin>(
        world.group(), TrainingOptions{.precision = ValueOrThrow(ParsePrecision(precision))});
  };
  try {
    std::vector<double> threads_s, ranks_s, ratio, call, share;
    double calls = 0;
    for (int round = 0; round < rounds; ++round) {
      Timing one, many;
      if (round % 2 == 0) one = RunRanks(1, ranks, ddp, steps);
      many = RunRanks(ranks, 1, ddp, steps);
      if (round % 2 != 0) one = RunRanks(1, ranks, ddp, steps);
      threads_s.push_back(one.step);
      ranks_s.push_back(many.step);
      ratio.push_back(one.step / many.step);
      call.push_back(many.call);
      share.push_back(many.calls * many.call / many.step);
      calls = many.calls;
    }
    const double tokens = static_cast<double>(kBatch * kBlock);
    std::printf(
        "{\"precision\": \"%s\", \"ranks\": %d, \"threads_tokens_per_s\": %.1f, "
        "\"ranks_tokens_per_s\": %.1f, \"ratio\": %.3f, \"calls_per_step\": %.0f, "
        "\"call_us\": %.2f, \"call_share\": %.6f}\n",
        precision.c_str(), ranks, tokens / Median(threads_s), tokens / Median(ranks_s),
        Median(ratio), calls, Median(call) * 1e6, Median(share));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ddp_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
