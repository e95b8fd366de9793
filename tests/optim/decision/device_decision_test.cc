// SPDX-License-Identifier: Apache-2.0

// Steps that a GPU decides: the bits and the report of steps that the host decides, and no wait.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <future>
#include <limits>

#include "apogee/comm/launch.h"
#include "apogee/optim/adam/scaled_adam.h"
#include "apogee/optim/core/group_stat_reducer.h"
#include "apogee/optim/registry.h"
#include "apogee/tensor/cuda/cuda_context.h"
#include "apogee/tests/optim/decision/held_gpu.h"
#include "apogee/tests/optim/optim_fixture.h"
#include "apogee/tests/support/message_of.h"

namespace apogee::optim {
namespace device_decision_test {

using ::apogee::testing::MessageOf;
using ::testing::HasSubstr;

struct Case {
  const char* name;
  OptionMap options;
};
// The threshold is known from the fifth update on.
OptionMap Clipping() {
  return {{"clipping_scale", "0.5"}, {"clipping_update_period", "4"}, {"size_update_period", "2"}};
}
// A new basis comes with the fifth update, and moments know the old one.
OptionMap Low(OptionMap options) {
  options.insert(
      {{"rank", "3"}, {"clamp_rank", "true"}, {"update_proj_gap", "4"}, {"on_refresh", "rotate"}});
  return options;
}
std::vector<Case> Cases() {
  return {{"sgd", {{"lr", "0.1"}, {"momentum", "0.9"}}},
          {"sgd", {{"lr", "0.1"}, {"maximize", "true"}}},
          {"adam", {{"lr", "0.1"}, {"amsgrad", "true"}}},
          {"adamw", {{"lr", "0.1"}}},
          {"lion", {{"lr", "0.1"}}},
          {"lomo", {{"lr", "0.1"}, {"weight_decay", "0.1"}, {"clip_grad_value", "0.2"}}},
          {"adalomo", {{"lr", "0.1"}, {"weight_decay", "0.1"}, {"clip_grad_value", "0.2"}}},
          {"lamb", {{"lr", "0.1"}}},
          {"lamb", {{"lr", "0.1"}, {"pre_clip_norm", "0.3"}}},
          {"lars", {{"lr", "0.1"}, {"momentum", "0.9"}}},
          {"adafactor", {}},
          {"adafactor", {{"beta1", "0.9"}}},
          {"came", {{"lr", "0.1"}}},
          {"adamw8bit", {{"lr", "0.1"}}},
          {"adamw8bit", {{"lr", "0.1"}, {"min_8bit_size", "0"}, {"block_size", "64"}}},
          {"adamw8bit", {{"lr", "0.1"}, {"min_8bit_size", "200"}, {"block_wise", "false"}}},
          {"adamw8bit", {{"lr", "0.1"}, {"min_8bit_size", "200"}, {"percentile_clipping", "30"}}},
          {"scaled_adam", {{"size_update_period", "2"}}},
          {"scaled_adam", Clipping()},
          {"scaled_adam_icefall_2023", Clipping()},
          {"galore_adamw", Low({{"lr", "0.1"}, {"weight_decay", "0.1"}})},
          {"galore_adamw8bit", Low({{"lr", "0.1"}, {"min_8bit_size", "200"}})},
          {"galore_adamw8bit", Low({{"min_8bit_size", "0"}, {"block_wise", "false"}})},
          {"galore_adafactor", Low({{"weight_decay", "0.1"}, {"beta1", "0.9"}})}};
}

class DeviceDecisionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (NumCudaDevices() == 0) GTEST_SKIP() << "no GPU: " << CudaContext().status();
    context_ = ValueOrThrow(CudaContext());
  }

  std::vector<ParameterPtr> MakeParams(DType dtype) const { return MakeParams(dtype, context_); }
  static std::vector<ParameterPtr> MakeParams(DType dtype, const ContextPtr& context) {
    std::vector<ParameterPtr> params;
    for (const Shape& shape : AwkwardShapes()) {
      const auto i = params.size();
      params.push_back(RandomParam("p" + std::to_string(i), shape, dtype, context, 100 + i));
    }
    return params;
  }
  // One of them is infinite where `infinite` says which.
  static void SetGrads(const std::vector<ParameterPtr>& params, uint64_t seed, int infinite = -1) {
    for (size_t i = 0; i < params.size(); ++i) {
      const Shape& shape = params[i]->shape();
      std::vector<double> values = RandomValues(shape.numel(), seed * 50 + i);
      if (static_cast<int>(i) == infinite) {
        values.back() = std::numeric_limits<double>::infinity();
      }
      const ContextPtr& context = params[i]->data().context();
      params[i]->set_grad(Tensor::FromVector(values, shape, context, params[i]->dtype()));
    }
  }

  ContextPtr context_;
};

TEST_F(DeviceDecisionTest, BitsAndReportsOfTheHost) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const NormKind kind : {NormKind::kL2, NormKind::kMax}) {
      for (const Case& c : Cases()) {
        if (kind == NormKind::kMax && std::string(c.name) != "adamw") continue;
        SCOPED_TRACE(c.name);
        const auto ours = MakeParams(dtype), theirs = MakeParams(dtype);
        auto device = ValueOrThrow(MakeOptimizer(c.name, ours, c.options));
        auto host = ValueOrThrow(MakeOptimizer(c.name, theirs, c.options));
        for (Optimizer* each : {device.get(), host.get()}) {
          each->set_step_options({.max_norm = 0.5, .norm_kind = kind, .loss_scale = 3});
        }
        for (int step = 0; step < 10; ++step) {
          const int infinite = step % 3 != 0 ? -1 : step == 0 ? 3 : step == 3 ? 5 : 7;
          SetGrads(ours, 1 + step, infinite);
          SetGrads(theirs, 1 + step, infinite);
          device->step();
          StepOnHost(*host);
          const StepReport &got = device->last_step(), &expected = host->last_step();
          EXPECT_EQ(got.skip, infinite >= 0);
          EXPECT_EQ(got.skip, expected.skip);
          EXPECT_EQ(got.nonfinite_parameter, expected.nonfinite_parameter);
          EXPECT_EQ(got.num_updated, expected.num_updated);
          EXPECT_EQ(got.clip_factor, expected.clip_factor);
          EXPECT_EQ(got.gate, nullptr);
          if (infinite < 0) {
            EXPECT_EQ(got.grad_norm, expected.grad_norm);
            EXPECT_LT(got.clip_factor, 1);
          }
          EXPECT_EQ(device->num_skipped_steps(), host->num_skipped_steps());
        }
        EXPECT_TRUE(device->traits().decides_on_device);
        for (int group = 0; group < device->num_groups(); ++group) {
          EXPECT_EQ(device->group_state(group), host->group_state(group));
        }
        for (size_t i = 0; i < ours.size(); ++i) {
          const ParamView &a = device->views()[i], &b = host->views()[i];
          EXPECT_EQ(a.step(), 6);
          EXPECT_EQ(a.step(), b.step());
          EXPECT_EQ(Values(ours[i]->data()), Values(theirs[i]->data())) << a.name();
          for (const NamedState& state : b.states()) {
            EXPECT_EQ(Values(a.state(state.name)), Values(state.value)) << a.name() << state.name;
          }
        }
      }
    }
  }
}

// The report, like the state that is saved, is of the last step that was not skipped.
TEST_F(DeviceDecisionTest, ClippingReportOfASkippedStep) {
  const auto params = MakeParams(DType::kF32);
  ScaledAdam optimizer(params, {.clipping_scale = 2, .clipping_update_period = 4});
  EXPECT_EQ(optimizer.Clipping(0).norm, 0);
  SetGrads(params, 1);
  optimizer.step();
  const ClippingReport before = optimizer.Clipping(0, 3);
  const GroupState state = optimizer.group_state(0);
  EXPECT_GT(before.norm, 0);
  EXPECT_EQ(state.at("clip_step"), std::vector<double>{1});
  params[0]->zero_grad(true);
  SetGrads({params[1], params[2]}, 2, 0);
  optimizer.step();
  const ClippingReport after = optimizer.Clipping(0, 3);
  EXPECT_EQ(after.norm, before.norm);
  ASSERT_EQ(after.dominant.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(after.dominant[i].name, before.dominant[i].name);
    EXPECT_EQ(after.dominant[i].share, before.dominant[i].share);
  }
  EXPECT_EQ(optimizer.group_state(0), state);
  SetGrads(params, 3);
  optimizer.step();
  EXPECT_NE(optimizer.Clipping(0).norm, before.norm);
  EXPECT_EQ(optimizer.state_dict().group_states.at(0).at("clip_step"), std::vector<double>{2});
}

// A rank that has no gradient takes part in what the others do; else they would wait for it.
TEST_F(DeviceDecisionTest, RanksWithoutGradientsDecideAlike) {
  std::vector<std::vector<double>> values[2];
  for (const bool on_host : {false, true}) {
    const comm::LaunchOptions launch = {
        .num_ranks = 2, .threads_per_rank = 1, .device = "cuda", .timeout_seconds = 30};
    const absl::Status status = comm::launch(launch, [&](comm::World& world) {
      const auto params = MakeParams(DType::kF32, world.context());
      auto optimizer = ValueOrThrow(MakeOptimizer("lamb", params, {{"lr", "0.1"}}));
      optimizer->set_stat_reducer(std::make_unique<GroupStatReducer>(world.group()));
      optimizer->set_step_options({.max_norm = 0.5});
      for (int step = 0; step < 4; ++step) {
        // Infinite ones of rank 0, nothing at all, finite ones of rank 0, of both.
        optimizer->zero_grad();
        if (step != 1 && (world.rank() == 0 || step == 3)) {
          SetGrads(params, 1 + step, step == 0 ? 2 : -1);
        }
        on_host ? StepOnHost(*optimizer) : static_cast<void>(optimizer->step());
        EXPECT_EQ(optimizer->last_step().skip, step == 0);
        EXPECT_EQ(optimizer->last_step().num_updated, step < 2 ? 0 : std::ssize(params));
      }
      if (world.rank() != 0) return;
      for (const ParameterPtr& parameter : params) {
        values[on_host].push_back(Values(parameter->data()));
      }
    });
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(values[0], values[1]);
}

// Without a check a factor of NaN must reach the weights, as without clipping.
TEST_F(DeviceDecisionTest, ProceedsWithNan) {
  const auto params = MakeParams(DType::kF32);
  auto optimizer = ValueOrThrow(MakeOptimizer("sgd", params, {{"lr", "0.1"}}));
  optimizer->set_step_options({.max_norm = 0.5, .nonfinite = NonFinitePolicy::kProceed});
  SetGrads(params, 1, 2);
  optimizer->step();
  EXPECT_FALSE(optimizer->last_step().skip);
  EXPECT_EQ(optimizer->last_step().nonfinite_parameter, "p2");
  for (const ParameterPtr& parameter : params) {
    const std::vector<double> values = Values(parameter->data());
    EXPECT_TRUE(parameter->name() != "p2" || std::isnan(values.back()));
  }
}

TEST_F(DeviceDecisionTest, StepWaitsForNothing) {
  for (const Case& c : Cases()) {
    for (const double max_norm : {0.0, 0.5}) {
      SCOPED_TRACE(c.name);
      const auto params = MakeParams(DType::kF32);
      auto optimizer = ValueOrThrow(MakeOptimizer(c.name, params, c.options));
      optimizer->set_step_options({.max_norm = max_norm});
      SetGrads(params, 1);
      optimizer->step();
      EXPECT_EQ(optimizer->last_step().skip, false);
      SetGrads(params, 2);
      context_->Synchronize();
      Blocker blocker(*context_);
      auto step = std::async(std::launch::async, [&] {
        optimizer->step();
        optimizer->zero_grad();
      });
      const std::future_status status = step.wait_for(std::chrono::seconds(30));
      blocker.GoOn();
      step.get();
      ASSERT_EQ(status, std::future_status::ready);
      EXPECT_TRUE(optimizer->may_have_updated());
      EXPECT_EQ(optimizer->last_step().num_updated, std::ssize(params));
    }
  }
}

// Keeps whether each step was skipped, when it hears of it.
struct Skips : StepListener {
  explicit Skips(Optimizer& from) : optimizer(from), own(from.AddListener(*this)) {}
  void Decided() override { skips.push_back(optimizer.last_step().skip); }
  Optimizer& optimizer;
  std::vector<bool> skips;
  Subscription own;
};

TEST_F(DeviceDecisionTest, DecidedIsToldWhenTheReportIsKnown) {
  const auto params = MakeParams(DType::kF32);
  auto optimizer = ValueOrThrow(MakeOptimizer("adamw", params));
  Skips heard(*optimizer);
  const std::vector<bool>& skips = heard.skips;
  SetGrads(params, 1, 0);
  optimizer->step();
  EXPECT_TRUE(skips.empty());
  EXPECT_EQ(optimizer->num_skipped_steps(), 1);
  EXPECT_EQ(skips, std::vector<bool>({true}));
  SetGrads(params, 2);
  optimizer->step();
  SetGrads(params, 3);
  optimizer->step();
  EXPECT_EQ(skips, std::vector<bool>({true, false}));
  EXPECT_EQ(optimizer->state_dict().params.at("p0").step, 2);
  EXPECT_EQ(skips.size(), 3u);
  SetGrads(params, 4, 0);
  optimizer->step();
  optimizer.reset();
  EXPECT_EQ(skips, std::vector<bool>({true, false, false, true}));
}

TEST_F(DeviceDecisionTest, FactorIsNotReadOnTheHost) {
  const StepGate gate{};
  EXPECT_EQ(static_cast<double>(GradFactor(0.5)), 0.5);
  EXPECT_THAT(MessageOf([&] { static_cast<void>(static_cast<double>(GradFactor(1, &gate))); }),
              HasSubstr("clear OptimizerTraits::decides_on_device of the optimizer"));
}

}  // namespace device_decision_test
}  // namespace apogee::optim
