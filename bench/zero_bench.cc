// SPDX-License-Identifier: Apache-2.0

// The speed of ZeRO. Prints one JSON line per measurement.
//
//   zero_bench --ranks 2 --rounds 5                    # a training step: stages 1 and 2, and DDP
//   zero_bench --ranks 2 --optimizer came --rounds 9   # an optimizer's step on shards
//
// Training: gpt_bench's GPT with one thread per rank. The three take turns within each round.
// `ratio` is the median over the rounds of stage / DDP; above 1 the stage is slower.
//
// Optimizer: every rank steps its shard of a model n times as large; statistics are reduced,
// parameters are not gathered. The reference is a step on the same number of elements as whole
// parameters. `ratio` is relative to as many independent ranks at the same time (they share the
// memory as the shards do), `ratio_alone` relative to one rank alone on the machine.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "apogee/bench/train_steps.h"
#include "apogee/chunk/parameter_chunks.h"
#include "apogee/core/blocking_waits.h"
#include "apogee/optim/core/group_stat_reducer.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/low_level_zero.h"

using namespace apogee;
using namespace apogee::bench;

namespace {

Tensor RandomTensor(const Shape& shape, const std::string& name, const ContextPtr& context) {
  const Tensor x = Tensor::Empty(shape, DType::kF32, context, MemoryCategory::kParameter);
  const PhiloxKey key = MakeKey(2, name);
  for (int64_t i = 0; i < x.numel(); ++i) {
    x.data<float>()[i] = static_cast<float>(Philox(key, static_cast<uint64_t>(i))[0]) * 0x1p-32f;
  }
  return x;
}

// Matrices and vectors of GPT blocks of width 512, three million elements per block.
std::vector<autograd::ParameterPtr> Blocks(int64_t count, const ContextPtr& context) {
  constexpr int64_t kWidth = 512;
  std::vector<autograd::ParameterPtr> parameters;
  for (int64_t block = 0; block < count; ++block) {
    for (const Shape& shape :
         {Shape{3 * kWidth, kWidth}, Shape{3 * kWidth}, Shape{kWidth, kWidth}, Shape{kWidth},
          Shape{4 * kWidth, kWidth}, Shape{4 * kWidth}, Shape{kWidth, 4 * kWidth}, Shape{kWidth}}) {
      const std::string name = "p" + std::to_string(parameters.size());
      parameters.push_back(
          std::make_shared<autograd::Parameter>(name, RandomTensor(shape, name, context)));
    }
  }
  return parameters;
}

// Seconds per optimizer step on each rank: on its shard (`blocks` blocks per rank), or on whole
// parameters.
double StepSeconds(int ranks, const std::string& name, bool sharded, int64_t blocks,
                   int64_t repeats) {
  double seconds = 0;
  OkOrThrow(comm::launch(
      {.num_ranks = ranks, .threads_per_rank = 1, .timeout_seconds = 600}, [&](comm::World& world) {
        const auto parameters = Blocks(sharded ? blocks * world.size() : blocks, world.context());
        auto made = optim::MakeOptimizer(name, parameters);
        OkOrThrow(made.status());
        optim::Optimizer& optimizer = **made;
        std::unique_ptr<chunk::ParameterChunks> chunks;
        if (sharded) {
          std::vector<chunk::ChunkRequest> requests;
          for (optim::ParamView& view : optimizer.views()) {
            requests.push_back({.numel = view.value().numel(),
                                .cut_multiple = optimizer.traits().Of(view, 0).cut_multiple});
          }
          chunks = std::make_unique<chunk::ParameterChunks>(
              parameters, chunk::PlanChunks(requests, {.num_shards = world.size()}), world.group(),
              std::vector<DType>{},
              [&](size_t i, const Tensor&, const Tensor& shard, const Layout& layout) {
                optimizer.views()[i].BindShard(shard, layout);
              });
          optimizer.set_stat_reducer(std::make_unique<optim::GroupStatReducer>(world.group()));
        }
        for (optim::ParamView& view : optimizer.views()) {
          const Tensor grad =
              RandomTensor(view.value().shape(), view.name() + "g", world.context());
          sharded ? view.set_grad(grad) : view.parameter()->set_grad(grad);
        }
        std::vector<double> times;
        for (int64_t step = 0; step < kWarmup + repeats; ++step) {
          if (world.group() != nullptr) world.group()->Barrier();
          const Clock::time_point start = Clock::now();
          optimizer.step();
          if (world.group() != nullptr) world.group()->Barrier();
          if (step >= kWarmup) times.push_back(SecondsSince(start));
        }
        if (world.rank() == 0) seconds = Median(times);
      }));
  return seconds;
}

void TrainAgainstDdp(int ranks, int rounds, int64_t steps, const std::string& precision) {
  const auto zero = [&](int stage) -> MakePlugin {
    return [&precision, stage](const comm::World& world) {
      return std::make_unique<LowLevelZeroPlugin>(
          world.group(), TrainingOptions{.precision = ValueOrThrow(ParsePrecision(precision))},
          LowLevelZeroOptions{.stage = stage});
    };
  };
  const MakePlugin plugins[] = {
      [&](const comm::World& world) {
        return std::make_unique<DdpPlugin>(
            world.group(), TrainingOptions{.precision = ValueOrThrow(ParsePrecision(precision))});
      },
      zero(1), zero(2)};
  std::vector<double> seconds[3], ratios[3];
  for (int round = 0; round < rounds; ++round) {
    double turn[3];
    for (int k = 0; k < 3; ++k) {
      const int which = (k + round) % 3;
      turn[which] = RunRanks(ranks, 1, plugins[which], steps).step;
    }
    for (int k = 0; k < 3; ++k) {
      seconds[k].push_back(turn[k]);
      ratios[k].push_back(turn[k] / turn[0]);
    }
  }
  for (const int stage : {1, 2}) {
    std::printf(
        "{\"ranks\": %d, \"precision\": \"%s\", \"stage\": %d, \"ddp_step_ms\": %.1f, "
        "\"step_ms\": %.1f, \"ratio\": %.3f}\n",
        ranks, precision.c_str(), stage, Median(seconds[0]) * 1e3, Median(seconds[stage]) * 1e3,
        Median(ratios[stage]));
  }
}

void OptimizerAgainstWhole(int ranks, int rounds, const std::string& name, int64_t blocks) {
  std::vector<double> shards, whole, alone, ratio, ratio_alone;
  for (int round = 0; round < rounds; ++round) {
    shards.push_back(StepSeconds(ranks, name, true, blocks, 9));
    whole.push_back(StepSeconds(ranks, name, false, blocks, 9));
    alone.push_back(StepSeconds(1, name, false, blocks, 9));
    ratio.push_back(shards.back() / whole.back());
    ratio_alone.push_back(shards.back() / alone.back());
  }
  std::printf(
      "{\"ranks\": %d, \"optimizer\": \"%s\", \"shard_step_ms\": %.2f, \"whole_step_ms\": %.2f, "
      "\"ratio\": %.3f, \"alone_step_ms\": %.2f, \"ratio_alone\": %.3f}\n",
      ranks, name.c_str(), Median(shards) * 1e3, Median(whole) * 1e3, Median(ratio),
      Median(alone) * 1e3, Median(ratio_alone));
}

}  // namespace

int main(int argc, char** argv) {
  UseBlockingWaits(argv);
  std::string precision = "f32", optimizer;
  int ranks = 2, rounds = 5;
  int64_t steps = 3, blocks = 4;
  CLI::App app("Speed of ZeRO stages 1 and 2.");
  app.add_option("--precision", precision, "f32, bf16, fp16 or f64")->capture_default_str();
  app.add_option("--ranks", ranks, "Ranks of one thread")->capture_default_str();
  app.add_option("--rounds", rounds, "Rounds in which the variants take turns")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", steps, "Timed training steps per turn")->capture_default_str();
  app.add_option("--optimizer", optimizer, "Measure this optimizer's step instead of training");
  app.add_option("--blocks", blocks, "GPT blocks per shard")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    if (optimizer.empty()) {
      TrainAgainstDdp(ranks, rounds, steps, precision);
    } else {
      OptimizerAgainstWhole(ranks, rounds, optimizer, blocks);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "zero_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
