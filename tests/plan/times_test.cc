// SPDX-License-Identifier: Apache-2.0

// Times of steps, long steps, scaling and failures.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "apogee/plan/plan.h"
#include "apogee/plan/scaling.h"
#include "apogee/plan/train_steps.h"
#include "apogee/plugins/pipeline/schedule.h"
#include "apogee/plugins/plugin.h"

namespace apogee::plan {
namespace times_test {

using ::testing::HasSubstr;

TrainingSetup Small() {
  TrainingSetup setup = ValueOrThrow(SetupOfConfig(
      R"({"model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 160,
          "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
          "max_position_embeddings": 256})",
      "small"));
  setup.batch = 24;
  setup.tokens = 64;
  return setup;
}

Machine Declared() {
  return {.name = "declared",
          .other = {.seconds_per_call = 1e-6, .seconds_per_flop = 1e-11, .seconds_per_byte = 1e-10},
          .ranks_per_machine = 2,
          .within = {.bytes_per_second = 1e10, .latency_seconds = 1e-6},
          .between = {.bytes_per_second = 1e9, .latency_seconds = 5e-6}};
}

const PlanRow& RowOf(const PlanReport& report, const std::string& name) {
  const auto found = std::ranges::find_if(
      report.rows, [&](const PlanRow& row) { return row.candidate.name == name; });
  APOGEE_CHECK(found != report.rows.end(), "no row ", name);
  return *found;
}

// All micro-batches, one after the other.
std::vector<RankPlan> InFull(const TrainingSetup& setup, const Candidate& candidate,
                             const Machine& machine) {
  return ValueOrThrow(DryRun({.num_ranks = candidate.num_ranks,
                              .ranks = candidate.Roles(),
                              .stand_in = [&](int rank) { return candidate.RoleOf(rank); },
                              .machine = &machine},
                             [&](comm::World& world) {
                               TrainSteps(setup, candidate, world, 2, [&](int step) {
                                 if (step == 1) BeginStep(world);
                               });
                             }));
}

void ExpectSame(const PlanRow& row, const std::vector<RankPlan>& full) {
  SCOPED_TRACE(row.candidate.name);
  ASSERT_EQ(row.ranks.size(), full.size());
  for (size_t r = 0; r < full.size(); ++r) {
    EXPECT_EQ(row.ranks[r].memory.live_bytes, full[r].memory.live_bytes);
    EXPECT_NEAR(static_cast<double>(row.ranks[r].memory.peak_total_bytes),
                static_cast<double>(full[r].memory.peak_total_bytes),
                1e-3 * static_cast<double>(full[r].memory.peak_total_bytes));
    EXPECT_NEAR(row.ranks[r].step.flops, full[r].step.flops, 1e-9 * full[r].step.flops);
    EXPECT_NEAR(row.ranks[r].step.seconds, full[r].step.seconds, 1e-6 * full[r].step.seconds);
    for (int kind = 0; kind < comm::kNumCollectiveKinds; ++kind) {
      const auto of = static_cast<comm::CollectiveKind>(kind);
      EXPECT_EQ(row.ranks[r].step.traffic.calls(of), full[r].step.traffic.calls(of));
      EXPECT_EQ(row.ranks[r].step.traffic.bytes(of), full[r].step.traffic.bytes(of));
    }
  }
}

TEST(TimesTest, LongStepsAreContinuedExactly) {
  const Machine machine = Declared();
  const TrainingSetup pipelined = Small();
  TrainingSetup accumulated = Small();
  accumulated.accumulate = 12;
  for (const char* name : {"hybrid pp2", "hybrid pp2 dp2 zero1", "hybrid pp4"}) {
    const int ranks = name == std::string("hybrid pp2") ? 2 : 4;
    const PlanReport report =
        ValueOrThrow(Plan(pipelined, {.num_ranks = ranks, .only = name, .machine = machine}));
    ASSERT_EQ(report.rows.size(), 1u);
    ExpectSame(report.rows[0], InFull(pipelined, report.rows[0].candidate, machine));
  }
  const PlanReport report = ValueOrThrow(Plan(accumulated, {.num_ranks = 2, .machine = machine}));
  for (const char* name : {"ddp", "zero2", "hybrid tp2"}) {
    const PlanRow& row = RowOf(report, name);
    ExpectSame(row, InFull(accumulated, row.candidate, machine));
  }
}

// Times do not depend on how fast the threads of the dry ranks are.
TEST(TimesTest, PipelinesTakeTheSameTimeEachTime) {
  const PlanOptions options{.num_ranks = 4, .only = "hybrid pp4", .machine = Declared()};
  const double seconds = ValueOrThrow(Plan(Small(), options)).rows[0].step_seconds;
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(ValueOrThrow(Plan(Small(), options)).rows[0].step_seconds, seconds);
  }
}

TEST(TimesTest, FlopsOfAStep) {
  TrainingSetup setup = Small();
  const PlanReport report = ValueOrThrow(Plan(setup, {.machine = Declared()}));
  const double tokens = 24 * 64, dim = 64;
  // Of a layer: q and o, k and v of half the heads, gate, up and down.
  const double layer = 2 * dim * dim + 2 * dim * dim / 2 + 3 * dim * 160;
  // Forward once, backward twice; attention's two products of T x T, 4 and then 10 of d = 16.
  const double products = 6 * tokens * (4 * layer + 1000 * dim);
  const double attention = 4 * 24 * 4 * (64.0 * 64 * 16) * 2;  // one product over all pairs
  EXPECT_GT(report.rows[0].flops, products + 3 * attention);
  EXPECT_LT(report.rows[0].flops, products + 8 * attention);
}

// A pipeline of equal stages, without cost of messages, waits as the schedule's simulation does.
TEST(TimesTest, PipelinesWaitAsTheirScheduleSays) {
  // The small vocabulary makes the last stage nearly equal.
  TrainingSetup setup = ValueOrThrow(SetupOfConfig(
      R"({"model_type": "llama", "vocab_size": 8, "hidden_size": 64, "intermediate_size": 160,
          "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 4,
          "max_position_embeddings": 256})",
      "equal"));
  setup.tokens = 128;
  setup.optimizer = "sgd";
  Machine machine{.name = "products only", .other = {.seconds_per_flop = 1e-9}};
  for (const int64_t micro_batches : {4, 8}) {
    setup.batch = micro_batches;
    const PlanReport one = ValueOrThrow(Plan(setup, {.num_ranks = 1, .machine = machine}));
    const PlanReport four =
        ValueOrThrow(Plan(setup, {.num_ranks = 4, .only = "hybrid pp4", .machine = machine}));
    // (m + p - 1) slots of 1/p of a sample's work each.
    const double expected = one.rows[0].step_seconds * static_cast<double>(micro_batches + 3) /
                            static_cast<double>(4 * micro_batches);
    EXPECT_NEAR(four.rows[0].step_seconds, expected, 0.03 * expected) << micro_batches;
  }
}

TEST(TimesTest, TheFastestThatFitsIsChosen) {
  const PlanReport report = ValueOrThrow(Plan(Small(), {.num_ranks = 4, .machine = Declared()}));
  const PlanRow* best = report.best();
  ASSERT_NE(best, nullptr);
  int64_t least = INT64_MAX;
  for (const PlanRow& row : report.rows) {
    EXPECT_GT(row.step_seconds, 0);
    EXPECT_GE(row.step_seconds, best->step_seconds);
    least = std::min(least, row.peak_bytes());
  }
  const PlanRow chosen = ValueOrThrow(Choose(Small(), {.num_ranks = 4, .machine = Declared()}));
  EXPECT_EQ(chosen.candidate.name, best->candidate.name);
  const PlanRow small =
      ValueOrThrow(Choose(Small(), {.num_ranks = 4, .device_bytes = least, .machine = Declared()}));
  EXPECT_EQ(small.peak_bytes(), least);
  EXPECT_THAT(Message(Choose(Small(), {.num_ranks = 4, .device_bytes = 1000}).status()),
              HasSubstr("plan: no plugin fits 4 ranks of 1000 B"));
}

TEST(TimesTest, AProgramsOwnLoop) {
  TrainingSetup setup = Small();
  const TrainingSetup model = setup;
  setup.train = [&](comm::World& world, Plugin& plugin, const std::function<void(int)>& before) {
    const std::unique_ptr<nn::Module> mine = model.make_model(false);
    mine->InitializeLazily(world.context(), {.seed = 1});
    EXPECT_FALSE(plugin.name().empty());
    for (int step = 0; step < 2; ++step) before(step);
  };
  const PlanReport report = ValueOrThrow(Plan(setup, {.num_ranks = 2, .only = "ddp"}));
  EXPECT_EQ(report.rows[0].refusal, "");
  setup.train = [](comm::World&, Plugin&, const auto&) { throw Error("the loop's own"); };
  EXPECT_THAT(ValueOrThrow(Plan(setup, {.num_ranks = 2, .only = "ddp"})).rows[0].refusal,
              HasSubstr("the loop's own"));
}

TEST(TimesTest, Scaling) {
  const PlanOptions options{.only = "ddp", .machine = Declared()};
  const auto strong = ValueOrThrow(Scale(Small(), options, {2, 4, 8}, Scaling::kStrong));
  const auto weak = ValueOrThrow(Scale(Small(), options, {2, 4, 8}, Scaling::kWeak));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(strong[i].batch, 24);
    EXPECT_EQ(weak[i].batch, 24 << i);
    for (const ScalingPoint& point : {strong[i], weak[i]}) {
      EXPECT_DOUBLE_EQ(point.tokens_per_second,
                       static_cast<double>(point.batch * 64) / point.row.step_seconds);
    }
    EXPECT_DOUBLE_EQ(weak[i].efficiency,
                     weak[i].tokens_per_second / weak[0].tokens_per_second / (1 << i));
  }
  // Gradients cross machines from four ranks on, and the work of a rank stays.
  EXPECT_LT(weak[1].efficiency, 1);
  EXPECT_LT(strong[2].efficiency, weak[2].efficiency);
  EXPECT_DOUBLE_EQ(weak[0].share_of_peak, weak[0].row.flops * 1e-11 / weak[0].row.step_seconds);
  EXPECT_THAT(TableOf(weak, Scaling::kWeak), HasSubstr("Weak scaling"));
  const auto refused = ValueOrThrow(Scale(Small(), options, {8, 16}, Scaling::kStrong));
  EXPECT_THAT(refused[1].refusal, HasSubstr("batch 24 is not divisible by 16"));
  EXPECT_THAT(TableOf(refused, Scaling::kStrong), HasSubstr("Without a row:\n16 ranks: batch 24"));
  EXPECT_THAT(Message(Scale(Small(), {}, {2}, Scaling::kStrong).status()),
              HasSubstr("there are no rates to simulate with"));
  EXPECT_THAT(Message(Scale(Small(), options, {4, 2}, Scaling::kStrong).status()),
              HasSubstr("must be positive and ascend, got 2 after 4"));
  EXPECT_THAT(Message(Scale(Small(), options, {5, 7}, Scaling::kWeak).status()),
              HasSubstr("is not a whole number"));
}

// Against failures drawn at random: work is lost since the last save.
TEST(TimesTest, FailuresAndSaves) {
  const ReliabilityOptions options{.rank_mttf_seconds = 1e6, .restart_seconds = 20};
  const Reliability r = ReliabilityOf(options, 100, /*save_seconds=*/10);
  EXPECT_DOUBLE_EQ(r.mttf_seconds, 1e4);
  EXPECT_DOUBLE_EQ(r.interval_seconds, std::sqrt(2 * 1e4 * 10));
  std::mt19937_64 random(1);
  std::exponential_distribution<double> until(1 / r.mttf_seconds);
  const auto lost = [&](double interval) {
    double clock = 0, useful = 0;
    for (int failure = 0; failure < 20000; ++failure) {
      const double life = until(random);
      useful += std::floor(life / (interval + 10)) * interval;
      clock += life + options.restart_seconds;
    }
    return 1 - useful / clock;
  };
  EXPECT_NEAR(r.lost, lost(r.interval_seconds), 0.05 * r.lost);
  EXPECT_LT(lost(r.interval_seconds), lost(r.interval_seconds / 3));
  EXPECT_LT(lost(r.interval_seconds), lost(r.interval_seconds * 3));
}

}  // namespace times_test
}  // namespace apogee::plan
