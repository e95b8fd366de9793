// SPDX-License-Identifier: Apache-2.0

// Timed training steps of gpt_bench's 12 M GPT with a plugin, for the benchmarks of data
// parallelism.
#ifndef APOGEE_BENCH_TRAIN_STEPS_H_
#define APOGEE_BENCH_TRAIN_STEPS_H_

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apogee/bench/median.h"
#include "apogee/booster/booster.h"
#include "apogee/comm/launch.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/adam/adam.h"

namespace apogee::bench {

inline constexpr int64_t kLayers = 6, kDim = 384, kHeads = 6, kBlock = 256, kBatch = 8,
                         kVocab = 4096;
inline constexpr int64_t kWarmup = 2;
inline nn::Gpt2Config ModelConfig() {
  return {.vocab_size = kVocab,
          .n_positions = kBlock,
          .n_embd = kDim,
          .n_layer = kLayers,
          .n_head = kHeads};
}

using Clock = std::chrono::steady_clock;

inline double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The seconds of two variants that take turns, `one` first in every second round.
struct Turns {
  std::vector<double> one_s, other_s, ratio;  // one / other
};
inline Turns TakeTurns(int rounds, const std::function<double()>& one,
                       const std::function<double()>& other) {
  Turns turns;
  for (int round = 0; round < rounds; ++round) {
    const bool first = round % 2 == 0;
    if (first) turns.one_s.push_back(one());
    turns.other_s.push_back(other());
    if (!first) turns.one_s.push_back(one());
    turns.ratio.push_back(turns.one_s.back() / turns.other_s.back());
  }
  return turns;
}

// Rows [first, first + rows) of a batch; the batch is the same however it is divided.
inline Tensor RandomTokens(const std::string& name, int64_t first, int64_t rows,
                           const ContextPtr& context) {
  std::vector<int64_t> tokens(static_cast<size_t>(rows * kBlock));
  const PhiloxKey key = MakeKey(1, name);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = Philox(key, static_cast<uint64_t>(first * kBlock) + i)[0] % kVocab;
  }
  return Tensor::FromVector<int64_t>(tokens, {rows, kBlock}, context);
}

// Makes the plugin of one rank.
using MakePlugin = std::function<std::unique_ptr<Plugin>(const comm::World&)>;

struct Timing {
  double step = 0;   // seconds, median
  double call = 0;   // seconds of a small all-reduce
  double calls = 0;  // collectives per step
};

// `tp` consecutive ranks have the same part of the batch. Rank 0 fills in `timing`.
inline void TrainSteps(const comm::World& world, const MakePlugin& make_plugin, int tp,
                       int64_t num_steps, Timing& timing) {
  const ContextPtr& context = world.context();
  nn::Gpt2 model(ModelConfig());
  model.Initialize(context, {.seed = 1});
  optim::AdamW optimizer(model.Parameters(), {.lr = 3e-4});
  const std::unique_ptr<Plugin> plugin = make_plugin(world);
  Booster booster(*plugin);
  Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  const int64_t rows = kBatch / (world.size() / tp), first = world.rank() / tp * rows;
  const Tensor inputs = RandomTokens("inputs", first, rows, context);
  const Tensor targets = RandomTokens("targets", first, rows, context);
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

// Launches `ranks` ranks that each train `steps` steps.
inline Timing RunRanks(int ranks, int threads, const MakePlugin& make_plugin, int64_t steps,
                       int tp = 1) {
  Timing timing;
  OkOrThrow(
      comm::launch({.num_ranks = ranks, .threads_per_rank = threads, .timeout_seconds = 600},
                   [&](comm::World& world) { TrainSteps(world, make_plugin, tp, steps, timing); }));
  return timing;
}

}  // namespace apogee::bench

#endif  // APOGEE_BENCH_TRAIN_STEPS_H_
