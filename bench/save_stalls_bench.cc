// SPDX-License-Identifier: Apache-2.0

// The cost of saving during training: gpt_bench's GPT, 50 steps without a save, with one, and with
// one in the background. Prints one JSON line.
//
//   save_stalls_bench --folder /tmp --rounds 3
//
// The three take turns within each round. `sync_stall` and `async_stall` are medians over the
// rounds of the extra time of the steps with a save, divided by the time of the steps without.
// `async_call_ms` is the time of the call itself, including the copy of the state.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "apogee/bench/train_steps.h"
#include "apogee/core/blocking_waits.h"
#include "apogee/nn/losses.h"
#include "apogee/plugins/low_level_zero.h"

using namespace apogee;
using namespace apogee::bench;

namespace {

struct Options {
  std::string folder = "/tmp", precision = "f32";
  int ranks = 1, threads = 2;
  int64_t rounds = 3, steps = 50, batch = 2;
};

enum Mode { kNone, kSync, kAsync, kNumModes };

struct Result {
  std::vector<double> sync_stall, async_stall, async_call_s, step_s;
  double checkpoint_bytes = 0;
};

void Train(const comm::World& world, const Options& options, const std::string& folder,
           Result& result) {
  const ContextPtr& context = world.context();
  nn::Gpt2 model(ModelConfig());
  model.Initialize(context, {.seed = 1});
  optim::AdamW optimizer(model.Parameters(), {.lr = 3e-4});
  LowLevelZeroPlugin plugin(
      world.group(), {.precision = ValueOrThrow(ParsePrecision(options.precision))}, {.stage = 1});
  Booster booster(plugin);
  Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  const int64_t rows = options.batch / world.size(), first = world.rank() * rows;
  const Tensor inputs = RandomTokens("inputs", first, rows, context);
  const Tensor targets = RandomTokens("targets", first, rows, context);
  int64_t saved = 0;
  double call_s = 0;
  const auto window = [&](Mode mode) {
    const Clock::time_point start = Clock::now();
    for (int64_t step = 0; step < options.steps; ++step) {
      booster.backward(boosted.criterion(boosted.model(inputs), targets), boosted.optimizer);
      boosted.optimizer.step();
      boosted.optimizer.zero_grad();
      if (step > 0 || mode == kNone) continue;
      const Clock::time_point call = Clock::now();
      OkOrThrow(booster.save_training_state(folder, {.step = ++saved},
                                            {.keep = 2, .use_async = mode == kAsync}));
      if (mode == kAsync) call_s = SecondsSince(call);
    }
    // Count the rest of the save in this window, and don't let the disk's backlog slow the next
    // one.
    OkOrThrow(booster.wait_for_saves());
    const double seconds = SecondsSince(start);
    sync();
    return seconds;
  };
  window(kSync);
  for (int64_t round = 0; round < options.rounds; ++round) {
    double seconds[kNumModes];
    for (int turn = 0; turn < kNumModes; ++turn) {
      const auto mode = static_cast<Mode>((turn + round) % kNumModes);
      seconds[mode] = window(mode);
    }
    if (world.rank() != 0) continue;
    result.step_s.push_back(seconds[kNone] / static_cast<double>(options.steps));
    result.sync_stall.push_back(seconds[kSync] / seconds[kNone] - 1);
    result.async_stall.push_back(seconds[kAsync] / seconds[kNone] - 1);
    result.async_call_s.push_back(call_s);
  }
}

}  // namespace

int main(int argc, char** argv) {
  UseBlockingWaits(argv);
  Options options;
  CLI::App app("The cost of saving during training.");
  app.add_option("--folder", options.folder, "A folder on the disk to save to")
      ->capture_default_str();
  app.add_option("--precision", options.precision, "f32, bf16, fp16 or f64")->capture_default_str();
  app.add_option("--ranks", options.ranks)->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "CPU threads per rank")->capture_default_str();
  app.add_option("--rounds", options.rounds, "Rounds in which the variants take turns")
      ->capture_default_str();
  app.add_option("--steps", options.steps, "Steps from one save to the next")
      ->capture_default_str();
  app.add_option("--batch", options.batch, "Samples of 256 tokens per step")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const std::string folder = options.folder + "/save_stalls." + std::to_string(getpid());
  try {
    Result result;
    OkOrThrow(comm::launch(
        {.num_ranks = options.ranks, .threads_per_rank = options.threads, .timeout_seconds = 600},
        [&](comm::World& world) { Train(world, options, folder, result); }));
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file())
        result.checkpoint_bytes += static_cast<double>(entry.file_size());
    }
    std::printf(
        "{\"precision\": \"%s\", \"ranks\": %d, \"checkpoint_mb\": %.1f, \"step_ms\": %.1f, "
        "\"sync_stall\": %.4f, \"async_stall\": %.4f, \"async_call_ms\": %.1f}\n",
        options.precision.c_str(), options.ranks, result.checkpoint_bytes / 2e6,
        Median(result.step_s) * 1e3, Median(result.sync_stall), Median(result.async_stall),
        Median(result.async_call_s) * 1e3);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "save_stalls_bench: %s\n", error.what());
    std::filesystem::remove_all(folder);
    return 1;
  }
  std::filesystem::remove_all(folder);
  return 0;
}
