// SPDX-License-Identifier: Apache-2.0

// Batch norm computes with the statistics of the whole micro-batch under every plugin, and its
// running averages are saved.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tests/plugins/batch_norm_run.h"
#include "apogee/tests/support/files/shared_temp_dir.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace batch_norm_test {

using ::testing::DoubleNear;
using ::testing::Pointwise;
using testing::RunRanks;
using testing::SharedTempDir;
using namespace testing::batch_norm;  // NOLINT(google-build-using-namespace)
using enum nn::parallel::ParallelStyle;

struct Spread {
  const char* name;
  int ranks;
  MakePlugin make;
  // The samples of each micro-batch of a step, of all ranks.
  std::vector<std::vector<int64_t>> micros;
  // Samples [begin[r], begin[r + 1]) of a micro-batch are data rank r's.
  std::vector<int64_t> begin;
};

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

}  // namespace batch_norm_test
}  // namespace apogee
