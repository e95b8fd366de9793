// SPDX-License-Identifier: Apache-2.0

// Booster::evaluation_weights: under every plugin the averages of one rank, then the old bits; what
// save_model writes; a run that is resumed; calls that the handle forbids.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/averaged/schedule_free.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tests/support/files/shared_temp_dir.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace evaluation_weights_test {

using apogee::testing::RunRanks;
using apogee::testing::Says;
using apogee::testing::SharedTempDir;
using ::testing::HasSubstr;

using Values = std::map<std::string, std::vector<double>>;

constexpr std::pair<const char*, int> kSpreads[] = {{"single", 1}, {"ddp", 2},     {"zero1", 3},
                                                    {"zero2", 2},  {"gemini", 3},  {"offloaded", 2},
                                                    {"hybrid", 4}, {"pipeline", 4}};

std::unique_ptr<Plugin> Make(const std::string& name, const comm::World& world) {
  const TrainingOptions training{.precision = Precision::kF64, .bucket_bytes = 700};
  if (name == "single") return std::make_unique<SingleRankPlugin>(training);
  if (name == "ddp") return std::make_unique<DdpPlugin>(world.group(), training);
  if (name == "gemini") return std::make_unique<GeminiPlugin>(world.group(), training);
  if (name == "offloaded") {
    return std::make_unique<GeminiPlugin>(
        world.group(), training,
        GeminiOptions{
            {.shard_param_frac = 0.5, .offload_optim_frac = 1, .offload_param_frac = 0.5}});
  }
  if (name == "hybrid" || name == "pipeline") {
    const bool pipeline = name == "pipeline";
    return std::make_unique<HybridParallelPlugin>(
        world, training,
        HybridParallelOptions{.tp_size = pipeline ? 1 : 2,
                              .pp_size = pipeline ? 2 : 1,
                              .stage = 1,
                              .num_microbatches = pipeline ? 2 : 0});
  }
  return std::make_unique<LowLevelZeroPlugin>(
      world.group(), training,
      LowLevelZeroOptions{.stage = name == "zero1" ? 1 : 2, .overlap_gather = true});
}

struct Averaging {
  Averaging(const std::string& name, comm::World& world, uint64_t seed = 1)
      : context(world.context()), plugin(Make(name, world)), booster(*plugin) {
    model.Initialize(context, {.seed = seed, .dtype = DType::kF64});
    optimizer = std::make_unique<optim::ScheduleFreeAdamW>(
        model.Parameters(),
        optim::ScheduleFreeAdamWOptions{.lr = 0.05, .weight_decay = 0.1, .warmup_steps = 2});
    boosted.emplace(booster.boost(model, *optimizer, {.criterion = nn::CrossEntropyLoss()}));
  }
  data::Batch BatchOf() const {
    const int64_t rows = 12 / plugin->data_size(), first = rows * plugin->data_rank();
    std::vector<int64_t> tokens, next;
    for (int64_t i = first * 8; i < (first + rows) * 8; ++i) {
      tokens.push_back((7 * i + i * i) % 19);
      next.push_back((5 * i + 3) % 19);
    }
    return {Tensor::FromVector(tokens, {rows, 8}, context),
            Tensor::FromVector(next, {rows, 8}, context)};
  }
  void Step() {
    booster.execute_pipeline(BatchOf(), boosted->model, boosted->criterion, &boosted->optimizer);
    boosted->optimizer.step();
    boosted->optimizer.zero_grad();
  }
  double Loss() {
    return booster.execute_pipeline(BatchOf(), boosted->model, boosted->criterion, nullptr)
        .loss.Item();
  }
  Values All() const {
    Values all;
    for (const auto& parameter : model.Parameters()) {
      all[parameter->name()] = plugin->WholeValue(*parameter).ToVector<double>();
    }
    return all;
  }

  ContextPtr context;
  nn::Gpt2 model{{.vocab_size = 19, .n_positions = 8, .n_embd = 16, .n_layer = 2, .n_head = 2}};
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<Plugin> plugin;
  Booster booster;
  std::optional<Boosted> boosted;
};

// x of one rank, from y and z as the equations say.
Values AveragesOfOneRank(const Averaging& run) {
  Values averages;
  for (const optim::ParamView& view : run.optimizer->views()) {
    std::vector<double>& x = averages[view.name()] = view.value().ToVector<double>();
    const std::vector<double> z = view.state("z").ToVector<double>();
    for (size_t i = 0; i < x.size(); ++i) x[i] += (1 - 1 / 0.9) * (z[i] - x[i]);
  }
  return averages;
}

TEST(EvaluationWeightsTest, TheAveragesOfOneRankUnderEveryPlugin) {
  for (const auto& [plugin, ranks] : kSpreads) {
    const SharedTempDir folder;
    RunRanks(ranks, [&, name = std::string(plugin)](comm::World& world) {
      Averaging run(name, world);
      for (int i = 0; i < 4; ++i) run.Step();
      const Values before = run.All();
      Averaging alone("single", world);
      for (int i = 0; i < 4; ++i) alone.Step();
      const Values first = alone.All(), want = AveragesOfOneRank(alone);
      OkOrThrow(run.booster.save_model(folder / "without"));
      {
        const auto averages = run.booster.evaluation_weights();
        const Values all = run.All();
        for (const auto& [parameter, values] : all) {
          // Relative to the distance between y and x.
          double error = 0, distance = 0;
          for (size_t i = 0; i < values.size(); ++i) {
            error += std::pow(values[i] - want.at(parameter)[i], 2);
            distance += std::pow(first.at(parameter)[i] - want.at(parameter)[i], 2);
          }
          EXPECT_LE(error, 1e-18 * distance) << name << " " << parameter;
          EXPECT_GT(distance, 0) << parameter;
        }
        EXPECT_NE(run.Loss(), 0);
        OkOrThrow(run.booster.save_model(folder / "within"));
      }
      EXPECT_TRUE(run.All() == before) << name;
      run.Step();  // as a run that was never evaluated
      Averaging other(name, world);
      for (int i = 0; i < 5; ++i) other.Step();
      EXPECT_TRUE(run.All() == other.All()) << name;
    });
    const std::string written = apogee::testing::ReadFile(folder / "without/model.safetensors");
    EXPECT_FALSE(written.empty());
    EXPECT_EQ(written, apogee::testing::ReadFile(folder / "within/model.safetensors")) << plugin;
  }
}

TEST(EvaluationWeightsTest, ResumesBitForBit) {
  for (const auto& [plugin, ranks] : kSpreads) {
    const SharedTempDir folder;
    RunRanks(ranks, [&, name = std::string(plugin)](comm::World& world) {
      Averaging whole(name, world);
      for (int i = 0; i < 3; ++i) whole.Step();
      OkOrThrow(whole.booster.save_training_state(folder / "run", {.step = 3}));
      for (int i = 0; i < 2; ++i) whole.Step();
      Averaging resumed(name, world, /*seed=*/2);
      OkOrThrow(resumed.booster.resume(folder / "run").status());
      for (int i = 0; i < 2; ++i) resumed.Step();
      EXPECT_TRUE(resumed.All() == whole.All()) << name;
      EXPECT_EQ(resumed.optimizer->group_state(0), whole.optimizer->group_state(0));
      const auto averages = resumed.booster.evaluation_weights();
      const Values got = resumed.All();
      const auto same = whole.booster.evaluation_weights();
      EXPECT_TRUE(got == whole.All()) << name;
    });
  }
}

TEST(EvaluationWeightsTest, TheHandleForbidsTraining) {
  for (const auto& [plugin, ranks] : kSpreads) {
    const SharedTempDir folder;
    RunRanks(ranks, [&, name = std::string(plugin)](comm::World& world) {
      Averaging run(name, world);
      run.Step();
      const Values before = run.All();
      {
        const auto averages = run.booster.evaluation_weights();
        const auto says = Says(HasSubstr("destroy the handle of evaluation_weights first"));
        EXPECT_THAT([&] { run.Step(); }, says);
        EXPECT_THAT([&] { run.boosted->optimizer.step(); }, says);
        EXPECT_EQ(run.booster.evaluation_weights(), averages);  // as a nested function may ask
        EXPECT_THAT(
            [&] { std::ignore = run.booster.save_training_state(folder / "run", {.step = 1}); },
            says);
        EXPECT_THAT([&] { std::ignore = run.booster.load_model(folder / "none"); }, says);
        EXPECT_THAT([&] { std::ignore = run.booster.resume(folder / "none"); }, says);
      }
      EXPECT_TRUE(run.All() == before) << name;
      run.boosted->optimizer.zero_grad();
      run.Step();
      EXPECT_FALSE(run.All() == before) << name;
    });
  }
}

}  // namespace evaluation_weights_test
}  // namespace apogee
