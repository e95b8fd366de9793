// Speed of data parallelism: N ranks of one thread against one rank of N threads, on the GPT of
// gpt_bench with the same global batch. Prints one JSON line.
//
//   ddp_bench --ranks 2 --rounds 3
//
// The two take turns within each round; `ratio` is the median over the rounds of the quotient of their
// median steps, above 1 when the ranks are faster. `call_share` is what fingerprint and rendezvous take
// of a step: the collectives of one step, times the time of an all-reduce of one number.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/comm/launch.h"
#include "apogee/core/blocking_waits.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/adam.h"
#include "apogee/plugins/ddp.h"

using namespace apogee;

namespace {

constexpr int64_t kLayers = 6, kDim = 384, kHeads = 6, kBlock = 256, kBatch = 8, kVocab = 4096;
constexpr int64_t kWarmup = 2;

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// Rows [first, first + rows) of a batch that does not depend on how it is split.
Tensor RandomTokens(const std::string& name, int64_t first, int64_t rows,
                    const ContextPtr& context) {
  std::vector<int64_t> tokens(static_cast<size_t>(rows * kBlock));
  const PhiloxKey key = MakeKey(1, name);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = Philox(key, static_cast<uint64_t>(first * kBlock) + i)[0] % kVocab;
  }
  return Tensor::FromVector<int64_t>(tokens, {rows, kBlock}, context);
}

struct Timing {
  double step = 0;   // seconds, median
  double call = 0;   // of a small all-reduce
  double calls = 0;  // per step
};

void TrainSteps(const comm::World& world, const std::string& precision, int64_t num_steps,
                Timing& timing) {
  const ContextPtr& context = world.context();
  nn::Gpt2 model({.vocab_size = kVocab,
                  .n_positions = kBlock,
                  .n_embd = kDim,
                  .n_layer = kLayers,
                  .n_head = kHeads});
  model.Initialize(context, {.seed = 1});
  optim::AdamW optimizer(model.Parameters(), {.lr = 3e-4});
  DdpPlugin plugin(world.group(), {.precision = precision});
  Booster booster(plugin);
  Boosted boosted = booster.boost(model, optimizer, nn::CrossEntropyLoss());
  const int64_t rows = kBatch / world.size();
  const Tensor inputs = RandomTokens("inputs", world.rank() * rows, rows, context);
  const Tensor targets = RandomTokens("targets", world.rank() * rows, rows, context);
  std::vector<double> steps;
  int64_t calls = 0;
  for (int64_t step = 0; step < kWarmup + num_steps; ++step) {
    const int64_t calls_before = world.group() ? world.group()->traffic().total_calls() : 0;
    const Clock::time_point start = Clock::now();
    booster.backward(boosted.criterion(boosted.model(inputs), targets), boosted.optimizer);
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
    if (step >= kWarmup) steps.push_back(SecondsSince(start));
    calls = (world.group() ? world.group()->traffic().total_calls() : 0) - calls_before;
  }
  if (world.rank() == 0) {
    timing.step = Median(steps);
    timing.calls = static_cast<double>(calls);
  }
  if (world.group() == nullptr) return;
  constexpr int kCalls = 1000;
  const Tensor one = Tensor::Full({1}, DType::kF32, 0, context);
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < kCalls; ++i) world.group()->AllReduce(one);
  if (world.rank() == 0) timing.call = SecondsSince(start) / kCalls;
}

Timing Run(int ranks, int threads, const std::string& precision, int64_t steps) {
  Timing timing;
  OkOrThrow(comm::launch(
      {.num_ranks = ranks, .threads_per_rank = threads, .timeout_seconds = 600},
      [&](comm::World& world) { TrainSteps(world, precision, steps, timing); }));
  return timing;
}

}  // namespace

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
  app.add_option("--rounds", rounds, "Turns")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--steps", steps, "Timed steps per turn")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    std::vector<double> threads_s, ranks_s, ratio, call, share;
    double calls = 0;
    for (int round = 0; round < rounds; ++round) {
      Timing one, many;
      if (round % 2 == 0) one = Run(1, ranks, precision, steps);
      many = Run(ranks, 1, precision, steps);
      if (round % 2 != 0) one = Run(1, ranks, precision, steps);
      threads_s.push_back(one.step);
      ranks_s.push_back(many.step);
      ratio.push_back(one.step / many.step);
      call.push_back(many.call);
      share.push_back(many.calls * many.call / many.step);
      calls = many.calls;
    }
    const double tokens = static_cast<double>(kBatch * kBlock);
    std::printf("{\"precision\": \"%s\", \"ranks\": %d, \"threads_tokens_per_s\": %.1f, "
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
