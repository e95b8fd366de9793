// SPDX-License-Identifier: Apache-2.0

// Batch norm computes with the statistics of the whole micro-batch under every plugin, and its
// running averages are saved.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/recompute.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/chain.h"
#include "apogee/nn/layers.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/shared_temp_dir.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace batch_norm_test {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using testing::RunRanks;
using testing::Says;
using testing::SharedTempDir;
using enum nn::parallel::ParallelStyle;

constexpr int64_t kSamples = 12;
constexpr int kSteps = 4;
constexpr TrainingOptions kTraining = {.precision = Precision::kF64};

// Without biases before norms: the loss does not depend on them, and AdamW would turn the rounding
// errors of their gradients into updates.
std::unique_ptr<nn::Sequential> MakeModel() {
  const nn::LinearOptions no_bias{.bias = false};
  using Named = std::pair<std::string, std::shared_ptr<nn::Module>>;
  return std::make_unique<nn::Sequential>(std::vector<Named>{
      {"fc1", std::make_shared<nn::Linear>(6, 8)},
      {"act", nn::Function(autograd::Tanh)},
      {"fc2", std::make_shared<nn::Linear>(8, 8, no_bias)},
      {"norm", std::make_shared<nn::BatchNorm>(8)},
      {"relu", nn::Function(autograd::Relu)},
      {"deep", std::make_shared<nn::Linear>(8, 8, no_bias)},
      {"deep_norm", std::make_shared<nn::BatchNorm>(8, nn::BatchNormOptions{.momentum = 0.3})},
      {"head", std::make_shared<nn::Linear>(8, 3)}});
}

using MakePlugin = std::function<std::unique_ptr<Plugin>(const comm::World& world)>;

MakePlugin Hybrid(const HybridParallelOptions& options) {
  return [options](const comm::World& world) {
    return std::make_unique<HybridParallelPlugin>(world, kTraining, options);
  };
}

struct Spread {
  const char* name;
  int ranks;
  MakePlugin make;
  // The samples of each micro-batch of a step, of all ranks.
  std::vector<std::vector<int64_t>> micros;
  // Samples [begin[r], begin[r + 1]) of a micro-batch are data rank r's.
  std::vector<int64_t> begin;
};

std::vector<int64_t> Range(int64_t first, int64_t count) {
  std::vector<int64_t> samples;
  for (int64_t i = first; i < first + count; ++i) samples.push_back(i);
  return samples;
}

// One micro-batch of the samples in order, equally shared.
Spread Even(const char* name, int ranks, MakePlugin make, int data_size) {
  Spread spread{name, ranks, std::move(make), {Range(0, kSamples)}, {}};
  for (int r = 0; r <= data_size; ++r) spread.begin.push_back(r * kSamples / data_size);
  return spread;
}

MakePlugin Ddp() {
  return [](const comm::World& world) {
    return std::make_unique<DdpPlugin>(world.group(), kTraining);
  };
}

std::vector<Spread> Spreads() {
  const nn::parallel::ParallelPlan plan{
      .name = "two layers",
      .rules = {{.pattern = "fc1", .style = kColumn}, {.pattern = "fc2", .style = kRow}}};
  const MakePlugin zero = [](const comm::World& world) {
    return std::make_unique<LowLevelZeroPlugin>(world.group(), kTraining,
                                                LowLevelZeroOptions{.stage = 2});
  };
  const MakePlugin gemini = [](const comm::World& world) {
    return std::make_unique<GeminiPlugin>(
        world.group(), TrainingOptions{.precision = Precision::kF64, .bucket_bytes = 1});
  };
  return {Even("ddp", 2, Ddp(), 2),
          Even("ddp", 3, Ddp(), 3),
          Even("ddp", 4, Ddp(), 4),
          {"ddp, unequal shares", 2, Ddp(), {Range(0, kSamples)}, {0, 5, kSamples}},
          Even("zero 2", 3, zero, 3),
          Even("gemini", 2, gemini, 2),
          Even("tp", 2, Hybrid({.tp_size = 2, .plan = plan}), 1),
          Even("tp and zero 1", 4, Hybrid({.tp_size = 2, .stage = 1, .plan = plan}), 2)};
}

// The pipeline's micro-batches, in the order in which every stage runs them.
std::vector<Spread> Pipelines() {
  const std::vector<std::vector<int64_t>> halves = {Range(0, 6), Range(6, 6)};
  std::vector<Spread> spreads;
  for (const auto schedule : {pipeline::ScheduleKind::k1F1B, pipeline::ScheduleKind::kZbv}) {
    spreads.push_back({Name(schedule),
                       2,
                       Hybrid({.pp_size = 2, .schedule = schedule, .num_microbatches = 2}),
                       halves,
                       {0, kSamples}});
  }
  // Each of the two replicas has 6 samples, and cuts them into two micro-batches.
  spreads.push_back({"two replicas",
                     4,
                     Hybrid({.pp_size = 2, .stage = 1, .num_microbatches = 2}),
                     {{0, 1, 2, 6, 7, 8}, {3, 4, 5, 9, 10, 11}},
                     {0, 6, kSamples}});
  return spreads;
}

data::Batch BatchOf(int step, const std::vector<int64_t>& samples, const ContextPtr& context) {
  std::vector<double> inputs;
  std::vector<int64_t> targets;
  for (const int64_t sample : samples) {
    for (int64_t i = 0; i < 6; ++i) {
      inputs.push_back(std::sin(static_cast<double>(7 * step + 3 * sample + 5 * i * sample + i)));
    }
    targets.push_back((step + sample * sample) % 3);
  }
  const auto n = static_cast<int64_t>(samples.size());
  return {Tensor::FromVector(inputs, {n, 6}, context), Tensor::FromVector(targets, {n}, context)};
}

struct Result {
  std::vector<double> losses;
  std::map<std::string, std::vector<double>> weights, buffers;
};

// One rank's run.
struct RankRun {
  RankRun(const MakePlugin& make, uint64_t seed, const comm::World& world)
      : context(world.context()), model(MakeModel()) {
    model->Initialize(context, {.seed = seed, .dtype = DType::kF64});
    // Where weights differ, buffers do, too.
    for (const auto& buffer : model->Buffers()) buffer->data().Fill(static_cast<double>(seed));
    optimizer.emplace(model->Parameters(), optim::AdamWOptions{.lr = 0.05});
    plugin = make(world);
    booster.emplace(*plugin);
    boosted.emplace(booster->boost(*model, *optimizer, {.criterion = nn::CrossEntropyLoss()}));
  }
  double Step(const std::vector<data::Batch>& micros) {
    const Accumulation window = booster->accumulate(static_cast<int64_t>(micros.size()));
    double loss = 0;
    for (const data::Batch& batch : micros) {
      loss += booster->execute_pipeline(batch, *model, boosted->criterion, &boosted->optimizer)
                  .loss.Item();
    }
    boosted->optimizer.step();
    boosted->optimizer.zero_grad();
    return loss;
  }
  Result Now() const {
    Result result;
    for (const auto& p : model->Parameters()) {
      result.weights[p->name()] = plugin->WholeValue(*p).ToVector<double>();
    }
    for (const auto& buffer : model->Buffers()) {
      if (buffer->is_here()) result.buffers[buffer->name()] = buffer->data().ToVector<double>();
    }
    return result;
  }

  ContextPtr context;
  std::unique_ptr<nn::Sequential> model;
  std::optional<optim::AdamW> optimizer;
  std::unique_ptr<Plugin> plugin;
  std::optional<Booster> booster;
  std::optional<Boosted> boosted;
};

// One rank that sees the same micro-batches.
Result Plain(const Spread& spread) {
  Result result;
  RunRanks(1, [&](comm::World& world) {
    RankRun run([](const comm::World&) { return std::make_unique<SingleRankPlugin>(kTraining); }, 1,
                world);
    std::vector<double> losses;
    for (int step = 0; step < kSteps; ++step) {
      std::vector<data::Batch> micros;
      for (const auto& samples : spread.micros) {
        micros.push_back(BatchOf(step, samples, run.context));
      }
      losses.push_back(run.Step(micros));
    }
    result = run.Now();
    result.losses = losses;
  });
  return result;
}

// The samples of this rank in every step: its part of each micro-batch, one after the other.
std::vector<int64_t> OwnSamples(const Spread& spread, int data_rank) {
  const auto rank = static_cast<size_t>(data_rank);
  return Range(spread.begin[rank], spread.begin[rank + 1] - spread.begin[rank]);
}

void ExpectSame(const Spread& spread, const Result& got, const Result& want) {
  for (const auto& [name, values] : got.weights) {
    EXPECT_THAT(values, Pointwise(DoubleNear(1e-9), want.weights.at(name)))
        << spread.name << " on " << spread.ranks << ": " << name;
  }
  for (const auto& [name, values] : got.buffers) {
    EXPECT_THAT(values, Pointwise(DoubleNear(1e-10), want.buffers.at(name)))
        << spread.name << " on " << spread.ranks << ": " << name;
  }
}

void ExpectTrainsAsPlain(const Spread& spread) {
  const Result want = Plain(spread);
  std::vector<std::set<std::string>> held(static_cast<size_t>(spread.ranks));
  RunRanks(spread.ranks, [&](comm::World& world) {
    RankRun run(spread.make, world.rank() == 0 ? 1 : 99, world);
    const auto rank = static_cast<size_t>(world.rank());
    for (int step = 0; step < kSteps; ++step) {
      const auto own = OwnSamples(spread, run.plugin->data_rank());
      run.Step({BatchOf(step, own, run.context)});
    }
    const Result got = run.Now();
    ExpectSame(spread, got, want);
    for (const auto& [name, values] : got.buffers) held[rank].insert(name);
  });
  std::set<std::string> all;
  for (const auto& names : held) all.insert(names.begin(), names.end());
  EXPECT_EQ(all.size(), 4u) << spread.name;
  EXPECT_LT(want.losses.back(), want.losses.front());
}

TEST(BatchNormTest, TrainsAsOnOneRank) {
  for (const Spread& spread : Spreads()) ExpectTrainsAsPlain(spread);
}

TEST(BatchNormTest, UsesThePipelinesMicroBatches) {
  for (const Spread& spread : Pipelines()) ExpectTrainsAsPlain(spread);
}

// Saves in the middle under one plugin, goes on under another.
TEST(BatchNormTest, ResumesUnderAnotherPlugin) {
  const std::vector<Spread> spreads = Spreads();
  const Spread &saver = spreads[0], &zero = spreads[4];
  const Result want = Plain(saver);
  for (const Spread& loader : {zero, spreads[7], saver}) {
    const SharedTempDir folder;
    RunRanks(saver.ranks, [&](comm::World& world) {
      RankRun run(saver.make, 1, world);
      for (int step = 0; step < 2; ++step) {
        run.Step({BatchOf(step, OwnSamples(saver, run.plugin->data_rank()), run.context)});
      }
      ASSERT_EQ(run.booster->save_training_state(folder / "run", {.step = 2}), absl::OkStatus());
      ASSERT_EQ(run.booster->save_model(folder / "weights"), absl::OkStatus());
    });
    RunRanks(loader.ranks, [&](comm::World& world) {
      RankRun run(loader.make, 7, world);
      ASSERT_EQ(run.booster->resume(folder / "run").status(), absl::OkStatus());
      for (int step = 2; step < kSteps; ++step) {
        run.Step({BatchOf(step, OwnSamples(loader, run.plugin->data_rank()), run.context)});
      }
      ExpectSame(loader, run.Now(), want);
    });
    // The weights' folder has the averages, too: evaluation needs them.
    RunRanks(1, [&](comm::World& world) {
      RankRun saved(
          [](const comm::World&) { return std::make_unique<SingleRankPlugin>(kTraining); }, 7,
          world);
      const auto before = saved.Now().buffers;
      ASSERT_EQ(saved.booster->load_model(folder / "weights").status(), absl::OkStatus());
      for (const auto& [name, values] : saved.Now().buffers) EXPECT_NE(values, before.at(name));
    });
  }
}

TEST(BatchNormTest, EvaluatesWithRunningAverages) {
  nn::BatchNorm norm(2, {.eps = 0, .momentum = 0.5});
  const ContextPtr context = CpuContext();
  norm.Initialize(context, {.dtype = DType::kF64});
  // Channel means 2 and 30; unbiased variances 2 and 200, biased 1 and 100.
  const Tensor x = Tensor::FromVector<double>({1, 20, 3, 40}, {2, 2}, context);
  EXPECT_THAT(norm(x).ToVector<double>(), Pointwise(DoubleNear(1e-14), {-1., -1., 1., 1.}));
  EXPECT_THAT(norm.Buffers()[0]->data().ToVector<double>(),
              Pointwise(DoubleNear(1e-14), {1., 15.}));
  EXPECT_THAT(norm.Buffers()[1]->data().ToVector<double>(),
              Pointwise(DoubleNear(1e-13), {1.5, 100.5}));
  norm.Train(false);
  const std::vector<double> want = {0, 5 / std::sqrt(100.5), 2 / std::sqrt(1.5),
                                    25 / std::sqrt(100.5)};
  EXPECT_THAT(norm(x).ToVector<double>(), Pointwise(DoubleNear(1e-14), want));
  EXPECT_THAT(norm.Buffers()[0]->data().ToVector<double>(),
              Pointwise(DoubleNear(1e-14), {1., 15.}));
}

TEST(BatchNormTest, RecomputingDoesNotAverageTwice) {
  const ContextPtr context = CpuContext();
  const Tensor x = BatchOf(0, Range(0, 5), context).inputs;
  std::vector<std::vector<double>> averages;
  for (const bool recompute : {false, true}) {
    nn::BatchNorm norm(6);
    norm.Initialize(context, {.dtype = DType::kF64});
    autograd::Parameter input("x", x);
    const auto run = [&](const Tensor& in) { return autograd::Square(norm(in)); };
    const Tensor y = recompute ? autograd::Recompute(run, input.value()) : run(input.value());
    autograd::Backward(autograd::Sum(y));
    averages.push_back(norm.Buffers()[0]->data().ToVector<double>());
  }
  EXPECT_EQ(averages[0], averages[1]);
}

TEST(BatchNormTest, Misuse) {
  const ContextPtr context = CpuContext();
  nn::BatchNorm norm(6);
  norm.Initialize(context, {.dtype = DType::kF64});
  const Tensor one = BatchOf(0, {0}, context).inputs;
  EXPECT_THAT([&] { norm(one); }, Says(HasSubstr("their variance needs at least two")));
  EXPECT_THAT(
      [&] {
        norm(one.View({2, 3}));
      },
      Says(HasSubstr("needs [samples, 6, ..], got [2, 3]")));
  EXPECT_THAT([&] { nn::BatchNorm(3, {.momentum = 0}); }, Says(HasSubstr("momentum must be in")));
  EXPECT_THAT([&] { nn::GroupNorm(3, 8); }, Says(HasSubstr("8 channels cannot be cut into 3")));
  norm.set_sequence_part({.rank = 0, .size = 2});
  EXPECT_THAT(
      [&] {
        norm(BatchOf(0, {0, 1}, context).inputs);
      },
      Says(HasSubstr("sequence parallelism leaves this rank only some")));
}

TEST(BatchNormTest, RefusesSomeOfTheChannels) {
  RunRanks(2, [](comm::World& world) {
    RankRun run(
        Hybrid({.tp_size = 2,
                .plan = nn::parallel::ParallelPlan{.name = "cut before the norm",
                                                   .rules = {{.pattern = "fc2", .style = kColumn},
                                                             {.pattern = "deep", .style = kRow}}}}),
        1, world);
    EXPECT_THAT([&] { run.Step({BatchOf(0, Range(0, 4), run.context)}); },
                Says(HasSubstr("batch norm \"norm\": its input [4, 4] holds only this rank's")));
  });
}

}  // namespace batch_norm_test
}  // namespace apogee
