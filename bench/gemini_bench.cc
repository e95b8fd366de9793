// SPDX-License-Identifier: Apache-2.0

// The cost of a device budget: gpt_bench's GPT with ZeRO stage 2, with Gemini without a budget, and
// with Gemini with budgets of 100, 50 and 25 % of the bytes that one rank with the whole model
// needs. Prints one JSON line.
//
//   gemini_bench --ranks 2 --threads 1 --rounds 5 --steps 5
//
// The variants take turns within each round. Ratios are medians over the rounds of tokens per
// second: Gemini without a budget relative to stage 2 (`unlimited`), and each budget relative to
// both.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "apogee/bench/train_steps.h"
#include "apogee/core/blocking_waits.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/low_level_zero.h"

using namespace apogee;
using namespace apogee::bench;

namespace {

struct Options {
  std::string precision = "f32";
  int ranks = 2, threads = 1;
  int64_t rounds = 5, steps = 5;
};

constexpr int kPercents[] = {100, 50, 25};
constexpr size_t kStageTwo = 0, kUnlimited = 1, kFirstBudget = 2, kNumVariants = 5;

// Parameters, gradients, masters and AdamW's moments.
int64_t NeededBytes(Precision precision) {
  const int64_t per_element = precision == Precision::kF64   ? 32
                              : precision == Precision::kF32 ? 16
                                                             : 18;
  return nn::Gpt2(ModelConfig()).num_parameters() * per_element;
}

double SecondsPerStep(size_t variant, const Options& options) {
  const MakePlugin make = [&](const comm::World& world) -> std::unique_ptr<Plugin> {
    if (variant == kStageTwo) {
      return std::make_unique<LowLevelZeroPlugin>(
          world.group(),
          TrainingOptions{.precision = ValueOrThrow(ParsePrecision(options.precision))},
          LowLevelZeroOptions{.stage = 2});
    }
    GeminiOptions gemini;
    if (variant >= kFirstBudget) {
      gemini.placement.placement_policy = PlacementPolicy::kAuto;
      gemini.placement.device_budget_bytes =
          NeededBytes(ValueOrThrow(ParsePrecision(options.precision))) *
          kPercents[variant - kFirstBudget] / 100;
    }
    return std::make_unique<GeminiPlugin>(
        world.group(),
        TrainingOptions{.precision = ValueOrThrow(ParsePrecision(options.precision))}, gemini);
  };
  return RunRanks(options.ranks, options.threads, make, options.steps).step;
}

}  // namespace

int main(int argc, char** argv) {
  UseBlockingWaits(argv);
  Options options;
  CLI::App app("The cost of a device budget.");
  app.add_option("--precision", options.precision, "f32, bf16, fp16 or f64")->capture_default_str();
  app.add_option("--ranks", options.ranks)->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "CPU threads per rank")->capture_default_str();
  app.add_option("--rounds", options.rounds, "Rounds in which the variants take turns")
      ->capture_default_str();
  app.add_option("--steps", options.steps, "Timed steps per turn")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    std::vector<double> to_stage_two[kNumVariants], to_unlimited[kNumVariants], seconds_of_two;
    for (int64_t round = 0; round < options.rounds; ++round) {
      double seconds[kNumVariants];
      for (size_t turn = 0; turn < kNumVariants; ++turn) {
        const size_t variant = (turn + static_cast<size_t>(round)) % kNumVariants;
        seconds[variant] = SecondsPerStep(variant, options);
      }
      seconds_of_two.push_back(seconds[kStageTwo]);
      for (size_t v = 0; v < kNumVariants; ++v) {
        to_stage_two[v].push_back(seconds[kStageTwo] / seconds[v]);
        to_unlimited[v].push_back(seconds[kUnlimited] / seconds[v]);
      }
    }
    std::printf(
        "{\"precision\": \"%s\", \"ranks\": %d, \"zero2_step_ms\": %.1f, \"unlimited\": %.3f",
        options.precision.c_str(), options.ranks, Median(seconds_of_two) * 1e3,
        Median(to_stage_two[kUnlimited]));
    for (size_t v = kFirstBudget; v < kNumVariants; ++v) {
      std::printf(", \"budget_%d\": {\"of_zero2\": %.3f, \"of_unlimited\": %.3f}",
                  kPercents[v - kFirstBudget], Median(to_stage_two[v]), Median(to_unlimited[v]));
    }
    std::printf("}\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gemini_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
