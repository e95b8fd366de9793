// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/schedule/lr_schedule.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "apogee/optim/adam/adam.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/optim/schedule/lr_schedule_registry.h"
#include "apogee/optim/schedule/lr_scheduler.h"
#include "apogee/tests/optim/optim_fixture.h"

namespace apogee::optim {
namespace lr_schedule_test {

using ::testing::HasSubstr;

double At(const LrSchedule& schedule, int64_t step, double base = 1.0, int64_t epoch = 0) {
  return schedule.lr({step, epoch}, base);
}
double HalfCosine(double share) { return (1 + std::cos(std::numbers::pi * share)) / 2; }

TEST(LrScheduleTest, ConstantAndWarmup) {
  const LrSchedule s = ConstantSchedule({.warmup_steps = 4});
  for (int k = 0; k < 4; ++k) EXPECT_DOUBLE_EQ(At(s, k, 2.0), 2.0 * (k + 1) / 4);
  EXPECT_EQ(At(s, 4, 2.0), 2.0);
  EXPECT_EQ(At(ConstantSchedule(), 100, 3.0), 3.0);
}

TEST(LrScheduleTest, Linear) {
  const LrSchedule s = LinearSchedule({.total_steps = 10, .warmup_steps = 4});
  EXPECT_DOUBLE_EQ(At(s, 0), 1.0 / 5);
  EXPECT_DOUBLE_EQ(At(s, 3), 4.0 / 5);
  EXPECT_DOUBLE_EQ(At(s, 4), 1);
  EXPECT_DOUBLE_EQ(At(s, 7), 0.5);
  EXPECT_DOUBLE_EQ(At(s, 10), 0);
  EXPECT_DOUBLE_EQ(At(s, 13), -0.5);
}

TEST(LrScheduleTest, Cosine) {
  const LrSchedule s = CosineSchedule({.total_steps = 14, .warmup_steps = 4, .eta_min = 0.1});
  EXPECT_DOUBLE_EQ(At(s, 3), 1);
  EXPECT_DOUBLE_EQ(At(s, 4), 1);
  EXPECT_DOUBLE_EQ(At(s, 7), 0.1 + 0.9 * HalfCosine(0.3));
  EXPECT_DOUBLE_EQ(At(s, 14), 0.1);
  EXPECT_DOUBLE_EQ(At(s, 16), 0.1 + 0.9 * HalfCosine(1.2));
}

TEST(LrScheduleTest, FlatCosine) {
  const LrSchedule s = FlatCosineSchedule({.total_steps = 12, .warmup_steps = 2, .pct_start = 0.5});
  EXPECT_EQ(At(s, 2), 1);
  EXPECT_EQ(At(s, 6), 1);
  EXPECT_DOUBLE_EQ(At(s, 9), HalfCosine(0.4));
}

TEST(LrScheduleTest, MultiStep) {
  const LrSchedule s =
      MultiStepSchedule({.milestones = {8, 2, 5}, .gamma = 0.5, .warmup_steps = 3});
  EXPECT_DOUBLE_EQ(At(s, 4), 1);  // milestone 2 lies in the warm-up
  EXPECT_DOUBLE_EQ(At(s, 5), 0.5);
  EXPECT_DOUBLE_EQ(At(s, 9), 0.25);
}

TEST(LrScheduleTest, PolynomialStepExponential) {
  const LrSchedule p = PolynomialSchedule({.total_steps = 10, .end_lr = 0.1, .power = 2});
  EXPECT_DOUBLE_EQ(At(p, 5), 0.1 + 0.9 * 0.25);
  EXPECT_DOUBLE_EQ(At(p, 20), 0.1);
  EXPECT_DOUBLE_EQ(At(StepDecaySchedule({.step_size = 3, .gamma = 0.5}), 8), 0.25);
  EXPECT_DOUBLE_EQ(At(ExponentialSchedule({.gamma = 0.9}), 3), 0.9 * 0.9 * 0.9);
}

TEST(LrScheduleTest, CosineRestarts) {
  const LrSchedule s = CosineRestartsSchedule({.t_0 = 3, .t_mult = 2, .eta_min = 0.1});
  for (const int64_t restart : {0, 3, 9, 21}) EXPECT_DOUBLE_EQ(At(s, restart), 1);
  EXPECT_DOUBLE_EQ(At(s, 6), 0.1 + 0.9 * HalfCosine(0.5));
  EXPECT_DOUBLE_EQ(At(CosineRestartsSchedule({.t_0 = 4}), 4'000'002), 0.5);
}

TEST(LrScheduleTest, Eden) {
  const LrSchedule s =
      EdenSchedule({.lr_batches = 10, .lr_epochs = 2, .warmup_batches = 4, .warmup_start = 0.5});
  EXPECT_DOUBLE_EQ(At(s, 0), 0.5);
  EXPECT_DOUBLE_EQ(At(s, 2, 1, 0), 0.75 * std::pow(104.0 / 100, -0.25));
  EXPECT_DOUBLE_EQ(At(s, 30, 1, 4), std::pow(10.0, -0.25) * std::pow(5.0, -0.25));
}

TEST(LrScheduleTest, OneCycle) {
  const LrSchedule s = OneCycleSchedule({.total_steps = 11, .pct_start = 0.5});
  const double rise = 0.5 * 11 - 1;
  EXPECT_NEAR(At(s, 0), 1.0 / 25, 1e-15);
  EXPECT_DOUBLE_EQ(At(s, 3), 1 + (1.0 / 25 - 1) * HalfCosine(3 / rise));
  EXPECT_NEAR(At(s, 10), 1.0 / 25 / 1e4, 1e-18);
  EXPECT_EQ(At(s, 50), At(s, 10));
  EXPECT_DOUBLE_EQ(s.momentum({0, 0}), 0.95);
  EXPECT_DOUBLE_EQ(s.momentum({10, 0}), 0.95);
  EXPECT_LT(s.momentum({4, 0}), 0.86);
}

TEST(LrScheduleTest, OptionsAreCheckedTogether) {
  const auto status = MakeLrSchedule("one_cycle", {{"pct_start", "2"}, {"div_factor", "-1"}});
  EXPECT_THAT(std::string(status.status().message()),
              ::testing::AllOf(HasSubstr("total_steps is 0"), HasSubstr("div_factor is -1"),
                               HasSubstr("pct_start is 2")));
  EXPECT_THROW(CosineSchedule({.total_steps = 10, .warmup_steps = 10}), Error);
  EXPECT_THROW(StepDecaySchedule({.step_size = 0}), Error);
}

TEST(LrScheduleTest, ByName) {
  EXPECT_THAT(LrScheduleNames(),
              ::testing::ElementsAre("constant", "cosine", "cosine_restarts", "eden", "exponential",
                                     "flat_cosine", "linear", "multistep", "one_cycle",
                                     "polynomial", "step"));
  const auto s = MakeLrSchedule("multistep", {{"milestones", "2,4"}, {"gamma", "0.5"}});
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(At(*s, 4), 0.25);
  EXPECT_THAT(std::string(MakeLrSchedule("cosin").status().message()),
              HasSubstr("did you mean \"cosine\""));
  EXPECT_THAT(std::string(MakeLrSchedule("step", {{"step_sze", "1"}}).status().message()),
              HasSubstr("did you mean \"step_size\""));
}

struct SawtoothOptions {
  int64_t period = 2;
  static std::vector<OptionField<SawtoothOptions>> Fields() {
    return {{"period", &SawtoothOptions::period}};
  }
};
LrSchedule SawtoothSchedule(const SawtoothOptions& options) {
  APOGEE_CHECK(options.period > 0, "period is ", options.period, ", must be above 0");
  return {.lr = [period = options.period](ScheduleTime time, double base_lr) {
    return base_lr * static_cast<double>(time.step % period);
  }};
}

TEST(LrScheduleTest, OwnSchedulesByName) {
  LrScheduleRegistry registry;
  registry.Add("sawtooth", &SawtoothSchedule, SawtoothOptions{.period = 3});
  EXPECT_EQ(At(*MakeLrSchedule("sawtooth", {}, registry), 5), 2);
  EXPECT_EQ(At(*MakeLrSchedule("sawtooth", {{"period", "5"}}, registry), 4, 0.5), 2);
  EXPECT_EQ(At(*registry.Make("step", {{"gamma", "0.5"}}), 1), 0.5);
  EXPECT_EQ(LrScheduleDefaults("sawtooth", registry)->at("period"), "3");
  EXPECT_THAT(LrScheduleNames(registry), ::testing::Contains("sawtooth"));
  EXPECT_FALSE(MakeLrSchedule("sawtooth").ok()) << "registries are independent";
  EXPECT_THAT(
      Message(registry.Make("sawtoth").status()),
      ::testing::AllOf(HasSubstr("did you mean \"sawtooth\""), HasSubstr("known: constant")));
  EXPECT_THAT(Message(registry.Make("sawtooth", {{"period", "0"}}).status()),
              HasSubstr("period is 0"));
  EXPECT_THROW(registry.Add("cosine", &SawtoothSchedule, SawtoothOptions{}), Error);
  EXPECT_THROW(registry.Add("sawtooth", &SawtoothSchedule, SawtoothOptions{}), Error);
}

class LrSchedulerTest : public ::testing::Test {
 protected:
  ParameterPtr Param(const std::string& name) {
    return RandomParam(name, {2}, DType::kF32, context_, 1);
  }
  ContextPtr context_ = CpuContext();
  Sgd sgd_{{{.params = {Param("a")}, .options = {.lr = 1}},
            {.params = {Param("b")}, .options = {.lr = 2}}}};
};

TEST_F(LrSchedulerTest, SetsEachGroupFromItsBase) {
  LrScheduler scheduler(sgd_, LinearSchedule({.total_steps = 4}));
  EXPECT_EQ(sgd_.lr(0), 1);
  scheduler.step();
  EXPECT_EQ(sgd_.lr(0), 0.75);
  EXPECT_EQ(sgd_.lr(1), 1.5);
  EXPECT_THAT(scheduler.last_lr(), ::testing::ElementsAre(0.75, 1.5));
}

TEST_F(LrSchedulerTest, FollowsASubstitutedOptimizer) {
  LrScheduler scheduler(sgd_, LinearSchedule({.total_steps = 4}));
  scheduler.step();
  Adam other({{.params = {Param("a")}}, {.params = {Param("b")}}});
  scheduler.Retarget(other);
  EXPECT_EQ(other.lr(1), 1.5);
  scheduler.step();
  EXPECT_EQ(other.lr(1), 1);
  EXPECT_EQ(sgd_.lr(1), 1.5);
  Adam single({Param("a")}, {});
  EXPECT_THROW(scheduler.Retarget(single), Error);
}

TEST_F(LrSchedulerTest, CyclesMomentum) {
  const LrSchedule cycle = OneCycleSchedule({.total_steps = 10});
  LrScheduler scheduler(sgd_, cycle);
  EXPECT_DOUBLE_EQ(sgd_.momentum(0), 0.95);
  Adam adam({Param("a")}, {});
  LrScheduler adam_scheduler(adam, cycle);
  adam_scheduler.step();
  EXPECT_DOUBLE_EQ(adam.options(0).betas[0], cycle.momentum({1, 0}));
}

TEST_F(LrSchedulerTest, ResumesFromItsState) {
  LrScheduler scheduler(sgd_, CosineSchedule({.total_steps = 10}));
  for (int k = 0; k < 3; ++k) scheduler.step();
  Sgd fresh({{.params = {Param("a")}, .options = {.lr = 7}},
             {.params = {Param("b")}, .options = {.lr = 7}}});
  LrScheduler resumed(fresh, CosineSchedule({.total_steps = 10}));
  ASSERT_TRUE(resumed.load_state_dict(scheduler.state_dict()).ok());
  EXPECT_EQ(fresh.lr(1), sgd_.lr(1));
  EXPECT_FALSE(resumed.load_state_dict({.step = 1, .epoch = 0, .base_lrs = {1}}).ok());
  EXPECT_FALSE(resumed.load_state_dict({.step = -1, .epoch = 0, .base_lrs = {1, 2}}).ok());
  EXPECT_EQ(resumed.num_steps(), 3);
}

}  // namespace lr_schedule_test
}  // namespace apogee::optim
