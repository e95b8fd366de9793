// SPDX-License-Identifier: Apache-2.0

// The model and the plan of docs/parallel_plans.md, which tests/consumer/model has, train as on one
// rank.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/tests/consumer/model/own_model.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace own_plan_test {

using own_model::OwnModel;
using own_model::OwnPlan;
using testing::RunRanks;
using enum nn::parallel::ParallelStyle;

constexpr int64_t kWords = 11, kWidth = 8;

// Losses, then the final weights.
std::vector<double> Train(int num_ranks, const HybridParallelOptions& options = {}) {
  std::vector<std::vector<double>> results(static_cast<size_t>(num_ranks));
  RunRanks(num_ranks, [&](comm::World& world) {
    OwnModel model(kWords, kWidth);
    model.Initialize(world.context(), {.seed = 3, .dtype = DType::kF64});
    optim::AdamW optimizer(model.Parameters(), {.lr = 0.01});
    HybridParallelPlugin plugin(world, {.precision = Precision::kF64, .max_norm = 1}, options);
    Booster booster(plugin);
    Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
    std::vector<double>& result = results[static_cast<size_t>(world.rank())];
    std::vector<int64_t> words;
    for (int64_t i = 0; i < 13; ++i) words.push_back(i * i % kWords);
    const std::vector<int64_t> inputs(words.begin(), words.end() - 1);
    const std::vector<int64_t> targets(words.begin() + 1, words.end());
    for (int step = 0; step < 5; ++step) {
      const Tensor loss = boosted.criterion(
          boosted.model(Tensor::FromVector<int64_t>(inputs, {2, 6}, world.context())),
          Tensor::FromVector<int64_t>(targets, {2, 6}, world.context()));
      result.push_back(loss.Item());
      booster.backward(loss, boosted.optimizer);
      boosted.optimizer.step();
      boosted.optimizer.zero_grad();
    }
    for (const auto& parameter : model.Parameters()) {
      const auto value = plugin.WholeValue(*parameter).ToVector<double>();
      result.insert(result.end(), value.begin(), value.end());
    }
  });
  for (const auto& other : results) EXPECT_EQ(other, results[0]);
  return results[0];
}

TEST(OwnPlanTest, TrainsAsOnOneRank) {
  const auto want = Train(1);
  EXPECT_LT(want[4], want[0]);
  for (const int zero : {0, 2}) {
    const auto got = Train(2, {.tp_size = 2, .stage = zero, .plan = OwnPlan()});
    EXPECT_THAT(got, ::testing::Pointwise(::testing::DoubleNear(1e-9), want));
  }
}

TEST(OwnPlanTest, BoostListsWhatDoesNotFit) {
  auto plan = OwnPlan();
  plan.rules[1].pattern = "blocks.*.upp";
  plan.rules[3] = {.pattern = "blocks.*.norm", .style = kRow};
  const absl::Status status = comm::launch({.num_ranks = 2}, [&](comm::World& world) {
    OwnModel model(kWords, kWidth);
    model.Initialize(world.context(), {.seed = 3});
    optim::AdamW optimizer(model.Parameters(), {});
    HybridParallelPlugin plugin(world, {}, {.tp_size = 2, .plan = plan});
    std::ignore = Booster(plugin).boost(model, optimizer);
  });
  EXPECT_THAT(Message(status), ::testing::HasSubstr("rule \"blocks.*.upp\" (column): no module"));
  EXPECT_THAT(Message(status), ::testing::HasSubstr("blocks.0.norm is not an nn::Linear"));
}

// A mask of a whole activation on this rank's columns of it: the run would not be the one-rank run.
TEST(OwnPlanTest, ADropoutOfCutColumnsNeedsARule) {
  auto plan = OwnPlan();
  std::erase_if(plan.rules, [](const auto& rule) { return rule.style == kDropout; });
  // Where no gradient flows, too.
  for (const auto& [zero, frozen] : {std::pair(0, false), {3, false}, {0, true}}) {
    RunRanks(2, [&, zero = zero, frozen = frozen](comm::World& world) {
      OwnModel model(kWords, kWidth);
      model.Initialize(world.context(), {.seed = 3});
      for (const auto& parameter : model.Parameters()) {
        parameter->set_requires_grad(!frozen || parameter->name().starts_with("head"));
      }
      optim::AdamW optimizer(model.Parameters(), {});
      HybridParallelPlugin plugin(world, {}, {.tp_size = 2, .stage = zero, .plan = plan});
      Booster booster(plugin);
      std::ignore = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
      const Tensor words = Tensor::Zeros({2, 6}, DType::kI64, world.context());
      EXPECT_THAT(
          [&] { model(words); },
          testing::Says(::testing::AllOf(
              ::testing::HasSubstr("dropout \"blocks.0.drop\""),
              ::testing::HasSubstr("no rule of the plan names it; add the rule {.pattern = "
                                   "\"blocks.0.drop\", .style = ParallelStyle::kDropout}"))));
      model.Train(false);
      EXPECT_NO_THROW(model(words));
    });
  }
}

}  // namespace own_plan_test
}  // namespace apogee
