// SPDX-License-Identifier: Apache-2.0

// Updates on shards inside backward: their memory, steps that are skipped, failures, refusals.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <tuple>

#include "apogee/chunk/sharded_parameters.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/tests/support/runs/fused_run.h"
#include "apogee/tests/support/runs/side_model.h"

namespace apogee {
namespace gemini_fused_edge_test {

using ::testing::HasSubstr;
using ::testing::Property;
using testing::RunRanks;
using testing::SideModel;
using ::testing::Throws;
using testing::Weights;
using testing::WeightsOf;
using testing::WholeWeightsOf;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename T>
class GeminiFusedEdgeTest : public ::testing::Test {};
using Optimizers = ::testing::Types<optim::Lomo, optim::AdaLomo>;
TYPED_TEST_SUITE(GeminiFusedEdgeTest, Optimizers);

// One rank's run of a SideModel.
template <typename Optimizer>
struct Run {
  explicit Run(const comm::World& world,
               const TrainingOptions& training = {.precision = Precision::kF64})
      : optimizer(Made(world, training), {.lr = 0.01}),
        plugin(world.group(), training),
        booster(plugin),
        rank(world.rank()) {
    std::ignore = booster.boost(model, optimizer);
  }
  std::vector<autograd::ParameterPtr> Made(const comm::World& world,
                                           const TrainingOptions& training) {
    model.Initialize(
        world.context(),
        {.seed = 5, .dtype = training.precision == Precision::kF64 ? DType::kF64 : DType::kF32});
    return model.Parameters();
  }
  Tensor Loss() {
    const ContextPtr context = model.Parameters()[0]->data().context();
    return autograd::Scale(model.Loss(context, 0.1 * (1 + rank), true), 0.01);
  }
  void Step() {
    booster.backward(Loss(), optimizer);
    optimizer.step();
  }
  Weights Whole() { return WholeWeightsOf(model, plugin); }
  int64_t gradient_bytes() {
    return model.Parameters()[0]->data().context()->ledger().live_bytes(MemoryCategory::kGradient);
  }

  SideModel model;
  Optimizer optimizer;
  GeminiPlugin plugin;
  Booster booster;
  int rank;
};

// The chunk of a layer, and the gradient that goes into it. A second walk costs no more, neither
// gradients nor values.
TYPED_TEST(GeminiFusedEdgeTest, GradientMemoryIsThatOfOneChunk) {
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    for (const bool recompute : {false, true}) {
      for (const int num_ranks : {1, 2, 3, 4}) {
        RunRanks(num_ranks, [&](comm::World& world) {
          nn::Gpt2 model({.vocab_size = 128,
                          .n_positions = 16,
                          .n_embd = 64,
                          .n_layer = 4,
                          .n_head = 4,
                          .recompute = recompute});
          model.Initialize(world.context(), {.seed = 1});
          TypeParam optimizer(model.Parameters(), {.lr = 1e-3});
          GeminiPlugin plugin(world.group(), {.precision = precision});
          Booster booster(plugin);
          std::ignore = booster.boost(model, optimizer);
          int64_t chunk = 0, parameter = 0;
          for (const auto& spec : plugin.chunks().plan()) chunk = std::max(chunk, spec.numel());
          for (const auto& p : model.Parameters()) {
            parameter = std::max(parameter, p->shape().numel());
          }
          MemoryLedger& ledger = world.context()->ledger();
          const Tensor tokens = Tensor::Full({2, 16}, DType::kI64, 3, world.context());
          int64_t values[2] = {};
          for (const bool two_walks : {false, true}) {
            optimizer.set_step_options(
                {.max_norm = two_walks ? 1e-3 : 0, .nonfinite = optim::NonFinitePolicy::kProceed});
            const Tensor loss = nn::CrossEntropyLoss()(model(tokens), tokens);
            ledger.ResetPeaks();
            booster.backward(loss, optimizer);
            const int64_t peak = ledger.peak_bytes(MemoryCategory::kGradient);
            EXPECT_GE(peak, parameter * 4);
            EXPECT_LE(peak, (chunk + parameter) * 4);
            EXPECT_EQ(ledger.live_bytes(MemoryCategory::kGradient), 0);
            values[two_walks] = ledger.peak_bytes(MemoryCategory::kParameter);
            optimizer.step();
            EXPECT_EQ(optimizer.last_step().clip_factor < 1, two_walks);
          }
          EXPECT_EQ(values[0], values[1]);
        });
        if (::testing::Test::HasFailure()) {
          FAIL() << Name(precision) << ", " << num_ranks << " ranks, recompute " << recompute;
        }
      }
    }
  }
}

// Nothing moves on any rank, whichever rank's gradient it is; the next step is an ordinary one.
TYPED_TEST(GeminiFusedEdgeTest, AnInfiniteGradientSkipsTheStepOnAllRanks) {
  for (const double max_norm : {0.0, 1.0}) {
    RunRanks(3, [&](comm::World& world) {
      const TrainingOptions training{.precision = Precision::kF64, .max_norm = max_norm};
      Run<TypeParam> run(world, training), expected(world, training);
      const Weights start = run.Whole();
      const auto parameter = run.model.FindParameter("2.weight");
      HookHandle hook = parameter->AddGradHook([&](autograd::Parameter& p) {
        if (world.rank() == 1) p.grad().Slice(0, 0, 1).Fill(kInfinity);
      });
      run.booster.backward(run.Loss(), run.optimizer);
      EXPECT_EQ(run.gradient_bytes(), 0);
      run.optimizer.step();
      EXPECT_TRUE(run.optimizer.last_step().skip);
      EXPECT_EQ(run.optimizer.last_step().nonfinite_parameter, "2.weight");
      EXPECT_EQ(run.Whole(), start);
      hook.Remove();
      run.Step();
      expected.Step();
      EXPECT_EQ(run.Whole(), expected.Whole());
      EXPECT_NE(run.Whole(), start);
    });
  }
}

TYPED_TEST(GeminiFusedEdgeTest, TheLossScaleBacksOffAndGoesOn) {
  RunRanks(2, [](comm::World& world) {
    Run<TypeParam> run(
        world, {.precision = Precision::kFp16, .loss_scaler = {.initial_scale = 4294967296.0}});
    for (int step = 0; step < 40; ++step) {
      // Options that the loop sets do not know the scale.
      if (step == 30) run.optimizer.set_step_options({.max_norm = 1});
      run.Step();
      const optim::StepReport& report = run.optimizer.last_step();
      if (!report.skip) EXPECT_LT(report.grad_norm, 100) << "the scale is still in it";
    }
    EXPECT_GT(run.optimizer.num_skipped_steps(), 0);
    EXPECT_LT(run.optimizer.num_skipped_steps(), 40);
    EXPECT_FALSE(run.optimizer.last_step().skip);
    EXPECT_GT(run.plugin.loss_scale(), 1);
    EXPECT_TRUE(std::isfinite(run.optimizer.last_step().grad_norm));
  });
}

// A failed backward leaves no gradients and no report; the next one is as if it had not been.
TYPED_TEST(GeminiFusedEdgeTest, AFailedBackwardLeavesNothing) {
  for (const char* name : {"last.weight", "last.bias"}) {
    RunRanks(2, [&](comm::World& world) {
      Run<TypeParam> run(world), expected(world);
      const bool first_walk = std::string(name) == "last.bias";
      const optim::StepOptions options{.nonfinite = first_walk ? optim::NonFinitePolicy::kSkip
                                                               : optim::NonFinitePolicy::kProceed};
      run.optimizer.set_step_options(options);
      expected.optimizer.set_step_options(options);
      const Weights start = run.Whole();
      // Of the first chunk, so that nothing has been updated yet.
      const auto parameter = run.model.FindParameter(name);
      HookHandle hook = parameter->AddGradHook([](autograd::Parameter&) { Throw("a hook fails"); });
      EXPECT_THAT([&] { run.booster.backward(run.Loss(), run.optimizer); },
                  Throws<Error>(Property(&Error::what, HasSubstr("a hook fails"))));
      EXPECT_EQ(run.gradient_bytes(), 0);
      EXPECT_THAT([&] { run.optimizer.step(); },
                  Throws<Error>(Property(&Error::what, HasSubstr("without a backward"))));
      EXPECT_EQ(run.Whole(), start);
      hook.Remove();
      run.Step();
      expected.Step();
      EXPECT_EQ(run.Whole(), expected.Whole());
    });
  }
}

TYPED_TEST(GeminiFusedEdgeTest, AccumulationIsRefused) {
  RunRanks(2, [](comm::World& world) {
    Run<TypeParam> run(world);
    {
      const auto hold = run.booster.no_sync();
      EXPECT_THAT([&] { run.booster.backward(run.Loss(), run.optimizer); },
                  Throws<Error>(Property(&Error::what, HasSubstr("cannot be accumulated"))));
    }
    run.booster.backward(run.Loss(), run.optimizer);
    const Weights after = run.Whole();
    EXPECT_THAT([&] { run.booster.backward(run.Loss(), run.optimizer); },
                Throws<Error>(Property(&Error::what, HasSubstr("cannot be accumulated"))));
    EXPECT_EQ(run.Whole(), after);
    run.optimizer.step();
    EXPECT_THAT([&] { run.optimizer.fused_backward(run.Loss()); },
                Throws<Error>(Property(&Error::what, HasSubstr("is a shard"))));
  });
}

// What another optimizer holds gets its gradient once, in two walks too.
TYPED_TEST(GeminiFusedEdgeTest, ParametersOfAnotherOptimizer) {
  std::vector<Weights> got;
  for (const bool two_walks : {false, true}) {
    RunRanks(2, [&](comm::World& world) {
      SideModel model;
      model.Initialize(world.context(), {.seed = 5, .dtype = DType::kF64});
      std::vector<autograd::ParameterPtr> own, others;
      for (const auto& p : model.Parameters()) {
        (p->name().starts_with("2.") ? others : own).push_back(p);
      }
      TypeParam optimizer(own, {.lr = 0.01});
      optimizer.set_step_options({.nonfinite = two_walks ? optim::NonFinitePolicy::kSkip
                                                         : optim::NonFinitePolicy::kProceed});
      optim::Sgd other(others, {.lr = 0.01});
      GeminiPlugin plugin(world.group(), {.precision = Precision::kF64});
      Booster booster(plugin);
      std::ignore = booster.boost(model, optimizer);
      const Weights start = WholeWeightsOf(model, plugin);
      for (int step = 0; step < 3; ++step) {
        booster.backward(
            autograd::Scale(model.Loss(world.context(), 0.1 * (1 + world.rank()), true), 0.01),
            optimizer);
        optimizer.step();
        other.step();
        other.zero_grad();
      }
      const Weights weights = WholeWeightsOf(model, plugin);
      EXPECT_NE(weights.at("2.weight"), start.at("2.weight"));
      if (world.rank() == 0) got.push_back(weights);
    });
    got.resize(two_walks ? 2 : 1);
    testing::ShareFromFirst(got.back());
  }
  EXPECT_EQ(got.at(0), got.at(1));
}

// The peers end with an error, long before a timeout, wherever a rank fails.
TYPED_TEST(GeminiFusedEdgeTest, ARankThatFailsEndsTheOthers) {
  for (const bool in_backward : {false, true}) {
    const auto begin = std::chrono::steady_clock::now();
    const absl::Status status = testing::LaunchRanks(
        {.num_ranks = 3, .threads_per_rank = 1, .timeout_seconds = 60}, [&](comm::World& world) {
          Run<TypeParam> run(world);
          run.Step();
          const auto fail = [&] { APOGEE_CHECK(world.rank() != 1, "a rank fails"); };
          if (in_backward) {
            run.model.FindParameter("3.weight")->AddGradHook([&](autograd::Parameter&) { fail(); });
          } else {
            run.model.layer(3).AddPreForwardHook([&](nn::Module&, const Tensor&) { fail(); });
          }
          run.Step();
        });
    EXPECT_THAT(Message(status), HasSubstr("a rank fails"));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  }
}

}  // namespace gemini_fused_edge_test
}  // namespace apogee
