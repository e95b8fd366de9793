// SPDX-License-Identifier: Apache-2.0

// Windows of micro-batches: the same bits as a loop that divides and holds back by hand, the update
// of the whole batch, gradients averaged once per window, and an error for every misuse.
#include "apogee/booster/accumulation.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace accumulation_test {

using ::testing::HasSubstr;
using testing::RunRanks;
using testing::Says;

constexpr int64_t kMicroBatches = 3, kRows = 2, kSteps = 4, kInputs = 5, kClasses = 7;

// Rows [first, first + rows) of the samples of a step, full-rank and the same on every rank.
data::Batch Rows(const ContextPtr& context, int64_t step, int64_t first, int64_t rows) {
  std::vector<double> inputs;
  std::vector<int64_t> targets;
  for (int64_t row = first; row < first + rows; ++row) {
    for (int64_t i = 0; i < kInputs; ++i) {
      inputs.push_back(std::sin(static_cast<double>(1 + i + 11 * row + 131 * step)));
    }
    targets.push_back((5 * row + 3 * step) % kClasses);
  }
  return {.inputs = Tensor::FromVector<double>(inputs, {rows, kInputs}, context),
          .targets = Tensor::FromVector<int64_t>(targets, {rows}, context)};
}

struct Training {
  Training(const ContextPtr& context, Plugin& plugin) : model({.sizes = {kInputs, 9, kClasses}}) {
    model.Initialize(context, {.seed = 3, .dtype = DType::kF64});
    optimizer = std::make_unique<optim::AdamW>(
        model.Parameters(), optim::AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
    start = Values();
    booster.emplace(plugin);
    boosted.emplace(booster->boost(model, *optimizer, {.criterion = nn::CrossEntropyLoss()}));
  }
  Tensor Loss(const data::Batch& batch) {
    return boosted->criterion(boosted->model(batch.inputs), batch.targets);
  }
  void Step() {
    boosted->optimizer.step();
    boosted->optimizer.zero_grad();
  }
  std::vector<double> Values() const {
    std::vector<double> values;
    for (const auto& p : model.Parameters()) {
      for (const double value : p->data().ToVector<double>()) values.push_back(value);
    }
    return values;
  }
  // The error of the update so far, relative to the one that ends at `want`.
  double UpdateError(const std::vector<double>& want) const {
    const std::vector<double> got = Values();
    double error = 0, update = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      error += (got[i] - want[i]) * (got[i] - want[i]);
      update += (want[i] - start[i]) * (want[i] - start[i]);
    }
    return std::sqrt(error / update);
  }

  nn::Mlp model;
  std::unique_ptr<optim::AdamW> optimizer;
  std::vector<double> start;
  std::optional<Booster> booster;
  std::optional<Boosted> boosted;
};

// The weights after steps of whole batches of `rows` samples, on one rank; and their losses.
std::vector<double> WholeBatches(const ContextPtr& context, int64_t rows,
                                 std::vector<double>& losses) {
  SingleRankPlugin plugin({.precision = Precision::kF64});
  Training run(context, plugin);
  for (int64_t step = 0; step < kSteps; ++step) {
    const Tensor loss = run.Loss(Rows(context, step, 0, rows));
    losses.push_back(loss.Item());
    run.booster->backward(loss, run.boosted->optimizer);
    run.Step();
  }
  return run.Values();
}

using MakePlugin = std::function<std::unique_ptr<Plugin>(const comm::World&)>;

std::vector<MakePlugin> Plugins() {
  return {[](const comm::World& world) -> std::unique_ptr<Plugin> {
            return std::make_unique<DdpPlugin>(world.group(),
                                               TrainingOptions{.precision = Precision::kF64});
          },
          [](const comm::World& world) -> std::unique_ptr<Plugin> {
            return std::make_unique<LowLevelZeroPlugin>(
                world.group(), TrainingOptions{.precision = Precision::kF64},
                LowLevelZeroOptions{.stage = 2});
          }};
}

TEST(AccumulationTest, IsTheUpdateOfTheWholeBatch) {
  for (const int ranks : {1, 2, 3}) {
    for (const MakePlugin& make : Plugins()) {
      RunRanks(ranks, [&](comm::World& world) {
        const ContextPtr& context = world.context();
        std::vector<double> losses;
        const std::vector<double> want =
            WholeBatches(context, kRows * kMicroBatches * world.size(), losses);
        const std::unique_ptr<Plugin> plugin = make(world);
        Training run(context, *plugin);
        const Accumulation window = run.booster->accumulate(kMicroBatches);
        for (int64_t step = 0; step < kSteps; ++step) {
          for (int64_t micro = 0; micro < kMicroBatches; ++micro) {
            EXPECT_FALSE(micro > 0 && window.is_complete());
            const int64_t part = plugin->data_rank() * kMicroBatches + micro;
            run.booster->backward(run.Loss(Rows(context, step, part * kRows, kRows)),
                                  run.boosted->optimizer);
          }
          ASSERT_TRUE(window.is_complete());
          double mean = window.loss();
          if (world.group() != nullptr) {
            const Tensor sum = Tensor::FromVector<double>({mean}, {1}, context);
            world.group()->AllReduce(sum);
            mean = sum.Item() / world.size();
          }
          EXPECT_NEAR(mean, losses[static_cast<size_t>(step)], 1e-12);
          run.Step();
        }
        EXPECT_LT(run.UpdateError(want), 1e-9);
      });
    }
  }
}

TEST(AccumulationTest, HasTheBitsAndTheTrafficOfALoopThatHoldsBackByHand) {
  RunRanks(2, [](comm::World& world) {
    const ContextPtr& context = world.context();
    const auto run_all = [&](bool by_hand, int64_t& calls) {
      DdpPlugin plugin(world.group(), {.precision = Precision::kF64});
      Training run(context, plugin);
      const int64_t before = world.group()->traffic().total_calls();
      std::unique_ptr<Accumulation> window;
      if (!by_hand) window.reset(new Accumulation(run.booster->accumulate(kMicroBatches)));
      for (int64_t micro = 0; micro < kSteps * kMicroBatches; ++micro) {
        const bool last = (micro + 1) % kMicroBatches == 0;
        const Tensor loss = run.Loss(Rows(context, micro, world.rank() * kRows, kRows));
        const std::shared_ptr<void> hold = by_hand && !last ? run.booster->no_sync() : nullptr;
        run.booster->backward(by_hand ? autograd::Scale(loss, 1.0 / kMicroBatches) : loss,
                              run.boosted->optimizer);
        if (last) run.Step();
      }
      calls = world.group()->traffic().total_calls() - before;
      return run.Values();
    };
    int64_t calls = 0, calls_by_hand = 0;
    const std::vector<double> values = run_all(false, calls);
    EXPECT_EQ(values, run_all(true, calls_by_hand));
    EXPECT_EQ(calls, calls_by_hand);
  });
}

TEST(AccumulationTest, InAWindowOfTargetsItIsTheMeanOverAllTargets) {
  RunRanks(2, [](comm::World& world) {
    const ContextPtr& context = world.context();
    const int64_t all = kRows * kMicroBatches * world.size();
    std::vector<double> losses;
    const std::vector<double> want = WholeBatches(context, all, losses);
    LowLevelZeroPlugin plugin(world.group(), {.precision = Precision::kF64}, {.stage = 1});
    Training run(context, plugin);
    const Accumulation window = run.booster->accumulate(kMicroBatches);
    // Rank 0 has one row more in each micro-batch than rank 1.
    const int64_t rows = world.rank() == 0 ? kRows + 1 : kRows - 1;
    const int64_t first = world.rank() == 0 ? 0 : (kRows + 1) * kMicroBatches;
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto targets = run.booster->accumulation_window(rows * kMicroBatches);
      for (int64_t micro = 0; micro < kMicroBatches; ++micro) {
        run.booster->backward(run.Loss(Rows(context, step, first + micro * rows, rows)),
                              run.boosted->optimizer);
      }
      ASSERT_TRUE(window.is_complete());
      run.Step();
    }
    EXPECT_LT(run.UpdateError(want), 1e-9);
  });
}

TEST(AccumulationTest, CountsPipelineCalls) {
  RunRanks(1, [](comm::World& world) {
    const ContextPtr& context = world.context();
    std::vector<double> losses;
    const std::vector<double> want = WholeBatches(context, kRows * kMicroBatches, losses);
    DdpPlugin plugin(world.group(), {.precision = Precision::kF64});  // runs the batch as one
    Training run(context, plugin);
    const Accumulation window = run.booster->accumulate(kMicroBatches);
    for (int64_t step = 0; step < kSteps; ++step) {
      for (int64_t micro = 0; micro < kMicroBatches; ++micro) {
        run.booster->execute_pipeline(Rows(context, step, micro * kRows, kRows), run.boosted->model,
                                      run.boosted->criterion, &run.boosted->optimizer);
        // Evaluation is not a micro-batch.
        run.booster->execute_pipeline(Rows(context, step, 0, kRows), run.boosted->model,
                                      run.boosted->criterion, nullptr);
      }
      ASSERT_TRUE(window.is_complete());
      EXPECT_NEAR(window.loss(), losses[static_cast<size_t>(step)], 1e-12);
      run.Step();
    }
    EXPECT_LT(run.UpdateError(want), 1e-9);
  });
}

class AccumulationMisuseTest : public ::testing::Test {
 protected:
  void Backward() {
    run_.booster->backward(run_.Loss(Rows(context_, 0, 0, kRows)), run_.boosted->optimizer);
  }

  ContextPtr context_ = CpuContext();
  SingleRankPlugin plugin_{{.precision = Precision::kF64}};
  Training run_{context_, plugin_};
};

TEST_F(AccumulationMisuseTest, AStepInTheMiddleOfAWindowThrowsAndChangesNothing) {
  const Accumulation window = run_.booster->accumulate(3);
  Backward();
  Backward();
  EXPECT_THAT([&] { run_.Step(); }, Says(HasSubstr("2 of the window's 3 micro-batches have run")));
  EXPECT_THAT([&] { std::ignore = window.loss(); },
              Says(HasSubstr("2 of the window's 3 micro-batches have run")));
  EXPECT_EQ(run_.Values(), run_.start);
  Backward();
  run_.Step();
  EXPECT_NE(run_.Values(), run_.start);
}

TEST_F(AccumulationMisuseTest, AWindowThatIsGivenUpLeavesNothingBehind) {
  {
    const Accumulation window = run_.booster->accumulate(3);
    Backward();
    run_.boosted->optimizer.zero_grad();
  }
  SingleRankPlugin plugin({.precision = Precision::kF64});
  Training other(context_, plugin);
  Backward();
  run_.Step();
  other.booster->backward(other.Loss(Rows(context_, 0, 0, kRows)), other.boosted->optimizer);
  other.Step();
  EXPECT_EQ(run_.Values(), other.Values());
}

TEST_F(AccumulationMisuseTest, RefusesWindowsThatMakeNoSense) {
  EXPECT_THAT([&] { std::ignore = run_.booster->accumulate(0); },
              Says(HasSubstr("the number of micro-batches is 0, must be at least 1")));
  const Accumulation window = run_.booster->accumulate(2);
  EXPECT_THAT([&] { std::ignore = run_.booster->accumulate(2); },
              Says(HasSubstr("windows of 2 micro-batches are open")));
  Booster not_boosted(plugin_);
  EXPECT_THAT([&] { std::ignore = not_boosted.accumulate(2); }, Says(HasSubstr("accumulate")));
}

}  // namespace accumulation_test
}  // namespace apogee
