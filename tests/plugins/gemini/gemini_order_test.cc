// SPDX-License-Identifier: Apache-2.0

// Gathering ahead goes by the order of the iteration before; any other order is exact, too.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/layers.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/runs/gemini_run.h"
#include "apogee/tests/support/runs/tiny_run.h"

namespace apogee {
namespace gemini_order_test {

using ::testing::HasSubstr;
using testing::kTinyBatch;
using ::testing::Not;
using testing::RunRanks;
using testing::TinyAdamW;
using testing::TinyKind;
using testing::TinyLoss;
using testing::TinyModel;
using testing::TinyRunOptions;
using testing::Weights;
using testing::WholeWeightsOf;

constexpr int64_t kWidth = 24;
constexpr size_t kLayers = 5;

// Runs its layers in any order, any number of times.
class Stack : public nn::Module {
 public:
  Stack() {
    for (size_t i = 0; i < kLayers; ++i) {
      layers_.push_back(Register(std::to_string(i), std::make_shared<nn::Linear>(kWidth, kWidth)));
    }
  }
  Tensor Forward(const Tensor& x) override {
    Tensor y = x;
    for (const size_t i : order_) y = (*layers_[i])(y);
    return y;
  }
  void set_order(std::vector<size_t> order) { order_ = std::move(order); }

 private:
  std::vector<std::shared_ptr<nn::Linear>> layers_;
  std::vector<size_t> order_ = {0, 1, 2, 3, 4};
};

int64_t StackBytes() { return static_cast<int64_t>(kLayers) * (kWidth * kWidth + kWidth) * 16; }

GeminiOptions Options(int percent) {
  if (percent == 0) return {};
  return {.placement = {.placement_policy = PlacementPolicy::kAuto,
                        .device_budget_bytes = StackBytes() * percent / 100}};
}

Weights TrainStack(int percent, const std::vector<std::vector<size_t>>& orders, bool evaluate) {
  Weights result;
  RunRanks(2, [&](comm::World& world) {
    Stack model;
    model.Initialize(world.context(), {.seed = 2});
    optim::AdamW optimizer(model.Parameters(), TinyAdamW());
    GeminiPlugin plugin(world.group(), {}, Options(percent));
    Booster booster(plugin);
    std::ignore = booster.boost(model, optimizer);
    const Tensor x = Tensor::Full({2, kWidth}, DType::kF32, 0.1 + world.rank(), world.context());
    for (size_t step = 0; step < orders.size(); ++step) {
      model.set_order(orders[step]);
      if (evaluate) {  // in another order than training's
        const autograd::NoGradGuard no_grad;
        model.set_order({4, 0});
        model(x);
        model.set_order(orders[step]);
      }
      const Tensor y = model(x);
      booster.backward(autograd::Sum(autograd::Mul(y, y)), optimizer);
      optimizer.step();
      optimizer.zero_grad();
    }
    const Weights weights = WholeWeightsOf(model, plugin);
    if (world.rank() == 0) result = weights;
  });
  return result;
}

TEST(GeminiOrderTest, AnyOrderIsExactAndTold) {
  const std::vector<std::vector<size_t>> changing = {{0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}, {4, 3, 2},
                                                     {4, 3, 2},       {0, 0, 4, 1, 0}, {1},
                                                     {0, 1, 2, 3, 4}};
  const Weights want = TrainStack(0, changing, false);
  for (const int percent : {100, 45}) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(TrainStack(percent, changing, false), want) << percent;
    const std::string told = ::testing::internal::GetCapturedStderr();
    if (percent == 100) EXPECT_THAT(told, HasSubstr("in another order than the one before"));
  }
}

TEST(GeminiOrderTest, EvaluationsAreNoChangeOfOrder) {
  const std::vector<std::vector<size_t>> same(5, {0, 1, 2, 3, 4});
  const Weights want = TrainStack(0, same, false);
  for (const int percent : {100, 45}) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(TrainStack(percent, same, true), want) << percent;
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("another order")));
  }
}

// Tied, frozen and unused parameters, and those that no optimizer holds.
TEST(GeminiOrderTest, TinyModelsUnderABudget) {
  for (const TinyKind kind : {TinyKind::kGpt2, TinyKind::kLlama}) {
    for (const int num_ranks : {1, 2, 3, 4}) {
      const TinyRunOptions options{.kind = kind, .dtype = DType::kF32, .steps = 5, .dropout = 0.1};
      Weights want;
      for (const int percent : {0, 100, 60}) {
        Weights got;
        int64_t peak = 0, budget = 0;
        RunRanks(num_ranks, [&](comm::World& world) {
          TinyModel model(options);
          model.Initialize(world.context(), {.seed = 11, .dtype = options.dtype});
          optim::AdamW optimizer(model.Parameters(), TinyAdamW());
          const TrainingOptions training{
              .precision = Precision::kBf16, .max_norm = 0.3, .bucket_bytes = 1000};
          GeminiOptions gemini;
          if (percent != 0) {
            gemini.placement.placement_policy = PlacementPolicy::kAuto;
            gemini.placement.device_budget_bytes = model.num_parameters() * 18 * percent / 100;
          }
          GeminiPlugin plugin(world.group(), training, gemini);
          Booster booster(plugin);
          std::ignore = booster.boost(model, optimizer);
          world.context()->ledger().ResetPeaks();
          const int64_t rows = kTinyBatch / num_ranks;
          for (int64_t step = 0; step < options.steps; ++step) {
            booster.backward(
                TinyLoss(model, world.context(), options, step, world.rank() * rows, rows),
                optimizer);
            optimizer.step();
            optimizer.zero_grad();
          }
          const Weights weights = WholeWeightsOf(model, plugin);
          if (world.rank() != 0) return;
          got = weights;
          peak = world.context()->ledger().peak_model_data_bytes();
          budget = gemini.placement.device_budget_bytes;
        });
        if (percent == 0) {
          want = got;
          continue;
        }
        EXPECT_EQ(got, want) << num_ranks << " ranks, " << percent << " %";
        EXPECT_LE(peak, budget) << num_ranks << " ranks, " << percent << " %";
      }
    }
  }
}

}  // namespace gemini_order_test
}  // namespace apogee
