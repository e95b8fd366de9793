// SPDX-License-Identifier: Apache-2.0

// Models whose ranks do different things, or whose backward wants values late.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/runs/gemini_run.h"
#include "apogee/tests/support/runs/side_model.h"

namespace apogee {
namespace gemini_edge_test {

using testing::RunRanks;
using testing::SideModel;
using testing::Weights;
using testing::WeightsOf;
using testing::WholeWeightsOf;
using testing::WorstUpdateError;

constexpr int kRanks = 3;
bool UsesSide(int64_t step, int rank) { return step == 1 || (step != 4 && rank == 1); }

// A rank without the side's gradient reduces that chunk last, while its peers want to go on.
TEST(GeminiEdgeTest, GradientsMissingOnSomeRanks) {
  SideModel plain;
  const ContextPtr context = CpuContext();
  plain.Initialize(context, {.seed = 5, .dtype = DType::kF64});
  const Weights start = WeightsOf(plain);
  optim::Sgd sgd(plain.Parameters(), {.lr = 0.01, .momentum = 0.9});
  for (int64_t step = 0; step < 6; ++step) {
    for (int rank = 0; rank < kRanks; ++rank) {
      autograd::Backward(
          autograd::Scale(plain.Loss(context, 1 + rank, UsesSide(step, rank)), 1.0 / kRanks));
    }
    sgd.step();
    sgd.zero_grad();
  }
  RunRanks(
      kRanks,
      [&](comm::World& world) {
        SideModel model;
        model.Initialize(world.context(), {.seed = 5, .dtype = DType::kF64});
        optim::Sgd optimizer(model.Parameters(), {.lr = 0.01, .momentum = 0.9});
        GeminiPlugin plugin(world.group(), {.precision = Precision::kF64});
        Booster booster(plugin);
        std::ignore = booster.boost(model, optimizer);
        for (int64_t step = 0; step < 6; ++step) {
          booster.backward(
              model.Loss(world.context(), 1 + world.rank(), UsesSide(step, world.rank())),
              optimizer);
          optimizer.step();
          optimizer.zero_grad();
        }
        const auto worst = WorstUpdateError(start, WeightsOf(plain), WholeWeightsOf(model, plugin));
        EXPECT_LE(worst.error, 1e-9) << worst.name;
      },
      /*timeout_seconds=*/10);
}

// Layers of one size each: nothing but their chunks tells the ranks' calls apart.
TEST(GeminiEdgeTest, RanksThatCallDifferentModulesGetAnError) {
  const absl::Status status = testing::LaunchRanks(
      {.num_ranks = 2, .threads_per_rank = 1, .timeout_seconds = 10}, [](comm::World& world) {
        SideModel model;
        model.Initialize(world.context(), {.seed = 5, .dtype = DType::kF64});
        optim::Sgd optimizer(model.Parameters(), {.lr = 0.01});
        GeminiPlugin plugin(world.group(), {.precision = Precision::kF64});
        Booster booster(plugin);
        std::ignore = booster.boost(model, optimizer);
        model.Skip(world.rank());
        model.Loss(world.context(), 1, true);
      });
  EXPECT_THAT(Message(status), ::testing::HasSubstr("all_gather"));
}

// Both micro-batches' forwards come before the backwards.
TEST(GeminiEdgeTest, GraphsThatWaitForEachOther) {
  SideModel plain;
  const ContextPtr context = CpuContext();
  plain.Initialize(context, {.seed = 5, .dtype = DType::kF64});
  const Weights start = WeightsOf(plain);
  optim::Sgd sgd(plain.Parameters(), {.lr = 0.01, .momentum = 0.9});
  for (int step = 0; step < 3; ++step) {
    for (const int sample : {0, 1, 2, 3}) {
      autograd::Backward(autograd::Scale(plain.Loss(context, 1 + sample, true), 0.25));
    }
    sgd.step();
    sgd.zero_grad();
  }
  RunRanks(2, [&](comm::World& world) {
    SideModel model;
    model.Initialize(world.context(), {.seed = 5, .dtype = DType::kF64});
    optim::Sgd optimizer(model.Parameters(), {.lr = 0.01, .momentum = 0.9});
    GeminiPlugin plugin(world.group(), {.precision = Precision::kF64});
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    const int64_t rest = world.context()->ledger().live_bytes(MemoryCategory::kParameter);
    for (int step = 0; step < 3; ++step) {
      const auto loss = [&](int micro) {
        return autograd::Scale(model.Loss(world.context(), 1 + world.rank() * 2 + micro, true),
                               0.5);
      };
      const Tensor first = loss(0), second = loss(1);
      booster.backward(first, optimizer);
      EXPECT_EQ(world.context()->ledger().live_bytes(MemoryCategory::kParameter), rest);
      booster.backward(second, optimizer);
      optimizer.step();
      optimizer.zero_grad();
    }
    const auto worst = WorstUpdateError(start, WeightsOf(plain), WholeWeightsOf(model, plugin));
    EXPECT_LE(worst.error, 1e-9) << worst.name;
  });
}

// Another optimizer steps on what the boosted one does not hold; what nobody holds is frozen.
TEST(GeminiEdgeTest, ParametersOfAnotherOptimizerAreAveragedAndStayWhole) {
  const auto split = [](nn::Module& model, bool other) {
    std::vector<autograd::ParameterPtr> picked;
    for (const auto& p : model.Parameters()) {
      p->set_requires_grad(!p->name().starts_with("3."));
      if (p->requires_grad() && p->name().starts_with("2.") == other) picked.push_back(p);
    }
    return picked;
  };
  SideModel plain;
  const ContextPtr context = CpuContext();
  plain.Initialize(context, {.seed = 5, .dtype = DType::kF64});
  const Weights start = WeightsOf(plain);
  split(plain, false);
  optim::Sgd sgd(plain.Parameters(), {.lr = 0.01});
  for (int step = 0; step < 3; ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      autograd::Backward(autograd::Scale(plain.Loss(context, 1 + rank, true), 0.5));
    }
    sgd.step();
    sgd.zero_grad();
  }
  RunRanks(2, [&](comm::World& world) {
    SideModel model;
    model.Initialize(world.context(), {.seed = 5, .dtype = DType::kF64});
    optim::Sgd optimizer(split(model, false), {.lr = 0.01});
    optim::Sgd other(split(model, true), {.lr = 0.01});
    GeminiPlugin plugin(world.group(), {.precision = Precision::kF64});
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    for (int step = 0; step < 3; ++step) {
      booster.backward(model.Loss(world.context(), 1 + world.rank(), true), optimizer);
      optimizer.step();
      other.step();
      optimizer.zero_grad();
      other.zero_grad();
    }
    EXPECT_TRUE(model.FindParameter("2.weight")->is_local());
    EXPECT_FALSE(model.FindParameter("3.weight")->is_local());
    const auto worst = WorstUpdateError(start, WeightsOf(plain), WholeWeightsOf(model, plugin));
    EXPECT_LE(worst.error, 1e-9) << worst.name;
  });
}

}  // namespace gemini_edge_test
}  // namespace apogee
