// SPDX-License-Identifier: Apache-2.0

// ZeRO stages 1 and 2 compute what one rank computes, with every optimizer.
#include "apogee/plugins/low_level_zero.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/booster/booster.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/ddp.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/runs/tiny_run.h"

namespace apogee {
namespace low_level_zero_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kTinyBatch;
using ::testing::Property;
using testing::RunRanks;
using ::testing::Throws;
using testing::TinyKind;
using testing::TinyLoss;
using testing::TinyModel;
using testing::TinyRunOptions;
using testing::Weights;
using testing::WeightsOf;
using testing::WorstUpdateError;

struct OptimizerChoice {
  std::string name = "adamw";
  optim::OptionMap options = {{"lr", "0.01"}, {"weight_decay", "0.1"}};
};

// Everything of the registry, with the options on that need statistics or momentum.
std::vector<OptimizerChoice> AllOptimizers() {
  const std::map<std::string, optim::OptionMap> special = {
      {"adafactor", {{"weight_decay", "0.1"}, {"beta1", "0.9"}}},
      {"adafactor_torch", {{"weight_decay", "0.1"}}},
      {"adamw8bit", {{"min_8bit_size", "100"}, {"block_size", "64"}}},
      {"galore_adamw",
       {{"lr", "0.02"}, {"rank", "3"}, {"clamp_rank", "true"}, {"update_proj_gap", "3"}}},
      {"galore_adamw8bit",
       {{"lr", "0.02"}, {"rank", "3"}, {"clamp_rank", "true"}, {"update_proj_gap", "3"}}},
      {"galore_adafactor", {{"rank", "3"}, {"clamp_rank", "true"}, {"update_proj_gap", "3"}}},
      // In its bases some gradients are little more than rounding, and a small eps magnifies them.
      {"soap", {{"lr", "0.1"}, {"eps", "1"}, {"precondition_frequency", "2"}}},
      {"sgd", {{"lr", "0.1"}, {"momentum", "0.9"}, {"weight_decay", "0.01"}}},
  };
  std::vector<OptimizerChoice> all;
  for (const std::string& name : optim::OptimizerNames()) {
    if (optim::TakesLocalGradients(name)) continue;
    const auto found = special.find(name);
    all.push_back({name, found == special.end() ? optim::OptionMap{} : found->second});
  }
  return all;
}

// Two groups, the second with the parameters that have one dimension.
std::unique_ptr<optim::Optimizer> Make(const OptimizerChoice& choice, const nn::Module& model) {
  std::vector<optim::TextParamGroup> groups = {{{}, choice.options}, {{}, choice.options}};
  if (groups[1].options.contains("weight_decay")) groups[1].options["weight_decay"] = "0";
  for (const auto& p : model.Parameters()) groups[p->shape().rank() == 1].params.push_back(p);
  auto made = optim::MakeOptimizer(choice.name, std::move(groups));
  APOGEE_CHECK(made.ok(), Message(made.status()));
  return std::move(*made);
}

// A key's bias shifts all scores of a row alike, so its true gradient is zero: what remains is
// rounding, which optimizers that normalise gradients would blow up.
void FreezeKeyBiases(nn::Module& model) {
  for (const auto& p : model.Parameters()) {
    if (p->name().ends_with("attn.c_attn.bias")) p->set_requires_grad(false);
  }
}

struct RunSetup {
  OptimizerChoice optimizer = {};
  TrainingOptions training = {.precision = Precision::kF64, .bucket_bytes = 3000};
  LowLevelZeroOptions zero = {};
  int num_ranks = 2;
  int64_t accumulate = 1;
  bool no_sync = true;
};

Weights PlainRun(const TinyRunOptions& options, const OptimizerChoice& choice,
                 Weights* start = nullptr) {
  const ContextPtr context = CpuContext();
  TinyModel model(options);
  model.Initialize(context, {.seed = 11, .dtype = options.dtype});
  FreezeKeyBiases(model);
  const auto optimizer = Make(choice, model);
  optimizer->set_step_options({.max_norm = options.max_norm});
  if (start != nullptr) *start = WeightsOf(model);
  for (int64_t step = 0; step < options.steps; ++step) {
    autograd::Backward(TinyLoss(model, context, options, step, 0, kTinyBatch));
    optimizer->step();
    optimizer->zero_grad();
  }
  return WeightsOf(model);
}

void Micro(Booster& booster, optim::Optimizer& optimizer, nn::Module& model, comm::World& world,
           const TinyRunOptions& options, const RunSetup& setup, int64_t step, int64_t micro) {
  const int64_t rows = kTinyBatch / setup.num_ranks / setup.accumulate;
  std::shared_ptr<void> hold;
  if (setup.no_sync && micro + 1 < setup.accumulate) hold = booster.no_sync();
  const int64_t first = (world.rank() * setup.accumulate + micro) * rows;
  booster.backward(autograd::Scale(TinyLoss(model, world.context(), options, step, first, rows),
                                   1.0 / static_cast<double>(setup.accumulate)),
                   optimizer);
}

template <typename Plugin, typename... PluginOptions>
Weights RunWith(const TinyRunOptions& options, const RunSetup& setup,
                const TrainingOptions& training, const PluginOptions&... plugin_options) {
  std::vector<Weights> results(static_cast<size_t>(setup.num_ranks));
  RunRanks(setup.num_ranks, [&](comm::World& world) {
    TinyModel model(options);
    model.Initialize(world.context(),
                     {.seed = world.rank() == 0 ? 11u : 99u, .dtype = options.dtype});
    FreezeKeyBiases(model);
    const auto optimizer = Make(setup.optimizer, model);
    Plugin plugin(world.group(), training, plugin_options...);
    Booster booster(plugin);
    std::ignore = booster.boost(model, *optimizer);
    for (int64_t step = 0; step < options.steps; ++step) {
      if (step == 4 && setup.accumulate > 1) {  // a partial window that zero_grad discards
        Micro(booster, *optimizer, model, world, options, setup, 50, 0);
        optimizer->zero_grad();
      }
      for (int64_t micro = 0; micro < setup.accumulate; ++micro) {
        Micro(booster, *optimizer, model, world, options, setup, step, micro);
      }
      optimizer->step();
      optimizer->zero_grad();
    }
    results[static_cast<size_t>(world.rank())] = WeightsOf(model);
  });
  testing::ShareByRank(results);
  for (const Weights& other : results) EXPECT_EQ(other, results[0]) << "ranks differ";
  return results[0];
}

Weights ZeroRun(const TinyRunOptions& options, const RunSetup& setup) {
  TrainingOptions training = setup.training;
  training.max_norm = options.max_norm;
  return RunWith<LowLevelZeroPlugin>(options, setup, training, setup.zero);
}

class EveryOptimizer : public ::testing::TestWithParam<OptimizerChoice> {};

TEST_P(EveryOptimizer, EqualsOneRankInF64) {
  const bool fused = GetParam().name.ends_with("lomo");
  int variant = 0;
  for (const double max_norm : {0.0, 0.3}) {
    const TinyRunOptions options{.kind = max_norm == 0 ? TinyKind::kGpt2 : TinyKind::kLlama,
                                 .steps = 10,
                                 .max_norm = max_norm};
    Weights start;
    const Weights want = PlainRun(options, GetParam(), &start);
    for (const int num_ranks : {1, 2, 3, 4}) {
      for (const int stage : {1, 2}) {
        ++variant;
        RunSetup setup{.optimizer = GetParam(), .num_ranks = num_ranks};
        setup.zero.stage = stage;
        setup.accumulate = fused || variant % 2 == 0 ? 1 : 3;
        setup.no_sync = variant % 3 != 0;
        setup.training.bucket_bytes = variant % 5 == 0 ? 1 << 20 : 3000;
        setup.training.overlap = variant % 7 != 0;
        setup.zero.overlap_gather = variant % 4 != 0;
        const Weights got = ZeroRun(options, setup);
        const auto worst = WorstUpdateError(start, want, got);
        EXPECT_LE(worst.error, 1e-9)
            << worst.name << ", " << num_ranks << " ranks, stage " << stage << ", accumulate "
            << setup.accumulate << ", no_sync " << setup.no_sync << ", max_norm " << max_norm;
        EXPECT_EQ(got.at("unused"), start.at("unused"));
        EXPECT_EQ(got.at("frozen"), start.at("frozen"));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryOptimizer, ::testing::ValuesIn(AllOptimizers()),
                         [](const auto& info) { return info.param.name; });

TEST(LowLevelZeroTest, F32AdamWHasTheBitsOfDdp) {
  const TinyRunOptions options{.dtype = DType::kF32, .steps = 8};
  for (const int num_ranks : {1, 2, 3, 4}) {
    RunSetup setup{.num_ranks = num_ranks};
    setup.training.precision = Precision::kF32;
    const Weights ddp = RunWith<DdpPlugin>(options, setup, TrainingOptions{.bucket_bytes = 1000});
    for (const int stage : {1, 2}) {
      setup.zero.stage = stage;
      EXPECT_EQ(ZeroRun(options, setup), ddp) << num_ranks << " ranks, stage " << stage;
    }
  }
}

}  // namespace low_level_zero_test
}  // namespace apogee
