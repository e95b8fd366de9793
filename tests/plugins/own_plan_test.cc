// SPDX-License-Identifier: Apache-2.0

// The model and the plan of docs/parallel_plans.md train as on one rank.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/layers.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace own_plan_test {

using testing::RunRanks;
using enum nn::parallel::ParallelStyle;

constexpr int64_t kWords = 11, kWidth = 8;

class Block : public nn::Module {
 public:
  explicit Block(int64_t d)
      : norm_(Register("norm", std::make_shared<nn::LayerNorm>(d))),
        up_(Register("up", std::make_shared<nn::Linear>(
                               d, 4 * d, nn::LinearOptions{.activation = Activation::kGeluTanh}))),
        drop_(Register("drop", std::make_shared<nn::Dropout>(0.1))),
        down_(Register("down", std::make_shared<nn::Linear>(4 * d, d))) {}
  Tensor Forward(const Tensor& x) override {
    return autograd::Add(x, (*down_)((*drop_)((*up_)((*norm_)(x)))));
  }

 private:
  std::shared_ptr<nn::LayerNorm> norm_;
  std::shared_ptr<nn::Linear> up_;
  std::shared_ptr<nn::Dropout> drop_;
  std::shared_ptr<nn::Linear> down_;
};

class Model : public nn::Module {
 public:
  Model()
      : embed_(Register("embed", std::make_shared<nn::Embedding>(kWords, kWidth))),
        blocks_(Register("blocks", std::make_shared<nn::Container>())),
        head_(Register("head", std::make_shared<nn::Linear>(kWidth, kWords))) {
    for (const std::string name : {"0", "1"}) {
      list_.push_back(blocks_->Register(name, std::make_shared<Block>(kWidth)));
    }
  }
  Tensor Forward(const Tensor& tokens) override {
    Tensor x = (*embed_)(tokens);
    for (const auto& block : list_) x = (*block)(x);
    return (*head_)(x);
  }

 private:
  std::shared_ptr<nn::Embedding> embed_;
  std::shared_ptr<nn::Container> blocks_;
  std::shared_ptr<nn::Linear> head_;
  std::vector<std::shared_ptr<Block>> list_;
};

nn::parallel::ParallelPlan Plan() {
  return {.name = "my model",
          .rules = {{.pattern = "embed", .style = kVocabulary},
                    {.pattern = "blocks.*.up", .style = kColumn},
                    {.pattern = "blocks.*.drop", .style = kDropout},
                    {.pattern = "blocks.*.down", .style = kRow},
                    {.pattern = "head", .style = kVocabulary}},
          .output_module = "head"};
}

// Losses, then the final weights.
std::vector<double> Train(int num_ranks, const HybridParallelOptions& options = {}) {
  std::vector<std::vector<double>> results(static_cast<size_t>(num_ranks));
  RunRanks(num_ranks, [&](comm::World& world) {
    Model model;
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
    const auto got = Train(2, {.tp_size = 2, .stage = zero, .plan = Plan()});
    EXPECT_THAT(got, ::testing::Pointwise(::testing::DoubleNear(1e-9), want));
  }
}

TEST(OwnPlanTest, BoostListsWhatDoesNotFit) {
  auto plan = Plan();
  plan.rules[1].pattern = "blocks.*.upp";
  plan.rules[3] = {.pattern = "blocks.*.norm", .style = kRow};
  const absl::Status status = comm::launch({.num_ranks = 2}, [&](comm::World& world) {
    Model model;
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
  auto plan = Plan();
  std::erase_if(plan.rules, [](const auto& rule) { return rule.style == kDropout; });
  // Where no gradient flows, too.
  for (const auto& [zero, frozen] : {std::pair(0, false), {3, false}, {0, true}}) {
    RunRanks(2, [&, zero = zero, frozen = frozen](comm::World& world) {
      Model model;
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
