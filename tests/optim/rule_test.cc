// SPDX-License-Identifier: Apache-2.0

// Rules without a model, an optimizer or a step: a view of one tensor, a gradient, a decision. And
// the contract between a rule and the store and the step that use it.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "apogee/optim/adam/adam.h"
#include "apogee/optim/momentum/lion.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/optim/registry.h"
#include "apogee/tests/optim/optim_fixture.h"
#include "apogee/tests/support/message_of.h"

namespace apogee::optim {
namespace rule_test {

using apogee::testing::MessageOf;
using ::testing::HasSubstr;

// One tensor, with the states that the rule lists.
struct OneTensor {
  OneTensor(const UpdateRule& rule, const std::vector<double>& values)
      : view("w", Tensor::FromVector(values, {static_cast<int64_t>(values.size())}, TestContext()),
             Layout({static_cast<int64_t>(values.size())})) {
    std::vector<StateSpec> specs;
    rule.ListStates(view, /*group=*/0, /*saved=*/nullptr, {}, specs);
    for (const StateSpec& spec : specs) view.AddState(spec);
  }
  void Step(UpdateRule& rule, const std::vector<double>& grad, const StepDecision& decision = {}) {
    view.set_step(view.step() + 1);
    const ActiveParam param{&view, 0,
                            Tensor::FromVector(grad, view.shape(), view.value().context())};
    rule.Update({{&param, 1}, decision, {}, 0});
  }
  ParamView view;
};

TEST(RuleTest, SgdIsItsFormula) {
  SgdRule rule({{.lr = 0.1, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.01}});
  const std::vector<double> g = {0.5, -2, 3}, start = {1, 2, -3};
  OneTensor tensor(rule, start);
  std::vector<double> w = start, buf(3, 0);
  for (int step = 0; step < 3; ++step) {
    tensor.Step(rule, g, {.clip_factor = 0.5, .inv_loss_scale = 0.25});
    for (size_t i = 0; i < w.size(); ++i) {
      const double grad = 0.125 * g[i] + 0.01 * w[i];
      buf[i] = step == 0 ? grad : 0.9 * buf[i] + 0.5 * grad;
      w[i] -= 0.1 * buf[i];
    }
  }
  const std::vector<double> ours = Values(tensor.view.value());
  for (size_t i = 0; i < w.size(); ++i) EXPECT_NEAR(ours[i] - start[i], w[i] - start[i], 1e-14);
}

TEST(RuleTest, LionIsItsFormula) {
  LionRule rule({{.lr = 0.1, .betas = {0.9, 0.99}, .weight_decay = 0.2}});
  const std::vector<double> g = {0.5, -2, 0}, start = {1, 2, -3};
  OneTensor tensor(rule, start);
  std::vector<double> w = start, m(3, 0);
  for (int step = 0; step < 4; ++step) {
    const double sign = step == 1 ? -1 : 1;  // so that the direction turns later than the gradient
    tensor.Step(rule, {sign * g[0], sign * g[1], sign * g[2]});
    for (size_t i = 0; i < w.size(); ++i) {
      const double grad = sign * g[i], direction = 0.9 * m[i] + 0.1 * grad;
      w[i] -= 0.1 * 0.2 * w[i];
      w[i] -= 0.1 * (direction > 0 ? 1 : direction < 0 ? -1 : 0);
      m[i] = 0.99 * m[i] + 0.01 * grad;
    }
  }
  const std::vector<double> ours = Values(tensor.view.value());
  for (size_t i = 0; i < w.size(); ++i) EXPECT_NEAR(ours[i] - start[i], w[i] - start[i], 1e-14);
}

TEST(RuleTest, OptionsOfACheckpointDecideItsStates) {
  AdamRule<AdamOptions> rule(std::vector<AdamOptions>(1));
  OneTensor tensor(rule, {1, 2});
  EXPECT_EQ(tensor.view.states().size(), 2u);
  const OptionMap saved = {{"amsgrad", "true"}};
  std::vector<StateSpec> specs;
  static_cast<UpdateRule&>(rule).ListStates(tensor.view, 0, &saved, {}, specs);
  ASSERT_EQ(specs.size(), 3u);
  EXPECT_STREQ(specs[2].name, "max_exp_avg_sq");
}

// Statistics that make every rank skip, and a state that the rule makes itself.
struct SkippingOptions {
  double lr = 1;
  static std::vector<OptionField<SkippingOptions>> Fields() {
    return {{"lr", &SkippingOptions::lr, OptionCheck::kPositive, "learning rate"}};
  }
};
struct SkippingRule : RuleOf<SkippingOptions> {
  static constexpr const char* kName = "skipping";
  explicit SkippingRule(std::vector<SkippingOptions> groups) : RuleOf(kName, std::move(groups)) {}
  OptimizerTraits traits() override { return {.num_stat_phases = 2}; }
  std::string ComputeStats(int phase, const RuleStep& step, StatBuffer&) override {
    ++computed;
    return phase == 0 && skips ? step.params.back().view->name() : "";
  }
  void Update(const RuleStep& step) override { updated += static_cast<int>(step.params.size()); }
  void On(RuleEvent event) override { finished += event == RuleEvent::kUpdated ? 1 : 0; }
  void States(const Subject&, std::vector<StateSpec>& specs) const override {
    specs = {{"always"}, {.name = "later", .made_by_rule = true}};
  }
  bool skips = false;
  int computed = 0, updated = 0, finished = 0;
};

TEST(RuleTest, StatisticsMaySkipTheStepBeforeAnythingChanges) {
  const ContextPtr context = TestContext();
  const ParameterPtr a = RandomParam("a", {3}, DType::kF64, context, 1),
                     b = RandomParam("b", {2}, DType::kF64, context, 2);
  OptimizerOf<SkippingRule> optimizer({a, b});
  const auto feed = [&] {
    a->set_grad(RandomTensor({3}, DType::kF64, context, 3));
    b->set_grad(RandomTensor({2}, DType::kF64, context, 4));
  };
  optimizer.rule().skips = true;
  feed();
  optimizer.step();
  EXPECT_TRUE(optimizer.last_step().skip);
  EXPECT_EQ(optimizer.last_step().nonfinite_parameter, "b");
  EXPECT_EQ(optimizer.rule().computed, 1);  // the second phase did not run
  EXPECT_EQ(optimizer.rule().updated + optimizer.rule().finished, 0);
  EXPECT_EQ(optimizer.views()[0].step(), 0);
  optimizer.rule().skips = false;
  optimizer.zero_grad();
  feed();
  optimizer.step();
  EXPECT_EQ(optimizer.rule().updated, 2);
  EXPECT_EQ(optimizer.rule().finished, 1);
  EXPECT_TRUE(optimizer.views()[0].state("always").defined());
  EXPECT_FALSE(optimizer.views()[0].state("later").defined());
  EXPECT_EQ(optimizer.states().PlannedBytes(), 8 * (3 + 2));
}

TEST(RuleTest, AnUpdateInsideBackwardMustBeATrait) {
  const ParameterPtr w = RandomParam("w", {3}, DType::kF64, TestContext(), 1);
  Sgd optimizer({w}, {.lr = 0.1});
  EXPECT_THAT(MessageOf([&] { optimizer.fused_backward(w->value()); }),
              HasSubstr("optimizer sgd does not update inside backward"));
}

TEST(RuleTest, EveryOptionIsChecksTextAndHelp) {
  for (const std::string& name : OptimizerNames()) {
    const OptionMap defaults = ValueOrThrow(OptimizerDefaults(name));
    const OptionMap help = ValueOrThrow(BuiltInOptimizers().Help(name));
    for (const auto& [option, value] : defaults) {
      EXPECT_FALSE(help.at(option).empty()) << name << ": " << option;
    }
  }
  EXPECT_THAT(ProblemsOf(SkippingOptions{.lr = 0}),
              ::testing::ElementsAre("lr is 0, must be above 0 and finite"));
}

}  // namespace rule_test
}  // namespace apogee::optim
