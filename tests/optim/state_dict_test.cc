// SPDX-License-Identifier: Apache-2.0

// Saving and loading: a resumed run has the same bits, and what does not fit changes nothing.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/optim/adam/adam.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/tests/optim/optim_fixture.h"

namespace apogee::optim {
namespace state_dict_test {

using ::testing::HasSubstr;

struct TrainingRun {
  explicit TrainingRun(DType dtype, AdamWOptions options = {.lr = 0.01, .weight_decay = 0.1})
      : context(TestContext()) {
    uint64_t seed = 1;
    for (const Shape& shape : {Shape{33, 17}, Shape{}, Shape{5}}) {
      params.push_back(RandomParam(internal::Concat("p", seed), shape, dtype, context, seed));
      ++seed;
    }
    optimizer = std::make_unique<AdamW>(params, options);
  }
  void Step(uint64_t step) {
    optimizer->zero_grad();
    for (size_t p = 0; p < params.size(); ++p) {
      if (p == 2) continue;  // one parameter never has a gradient
      params[p]->set_grad(
          RandomTensor(params[p]->shape(), params[p]->data().dtype(), context, 100 * p + step));
    }
    optimizer->step();
  }
  std::vector<std::vector<double>> Weights() const {
    std::vector<std::vector<double>> weights;
    for (const ParameterPtr& p : params) weights.push_back(Values(p->data()));
    return weights;
  }

  ContextPtr context;
  std::vector<ParameterPtr> params;
  std::unique_ptr<AdamW> optimizer;
};

// Copies of the tensors, as a checkpoint on disk holds them.
StateDict Saved(const Optimizer& optimizer) {
  StateDict dict = optimizer.state_dict();
  for (auto& [name, param] : dict.params) {
    for (auto& [key, state] : param.states) state.value = state.value.Clone();
  }
  return dict;
}

TEST(StateDictTest, ResumeIsBitwise) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    for (const bool amsgrad : {false, true}) {
      const AdamWOptions options{.lr = 0.01, .weight_decay = 0.1, .amsgrad = amsgrad};
      TrainingRun straight(dtype, options);
      for (uint64_t step = 1; step <= 3; ++step) straight.Step(step);
      TrainingRun resumed(dtype,
                          {.lr = 0.5, .betas = {0.1, 0.2}});  // everything comes from the state
      const StateDict dict = Saved(*straight.optimizer);
      for (size_t p = 0; p < 3; ++p) resumed.params[p]->data().CopyFrom(straight.params[p]->data());
      ASSERT_TRUE(resumed.optimizer->load_state_dict(dict).ok());
      EXPECT_EQ(resumed.optimizer->options(0).lr, 0.01);
      EXPECT_EQ(resumed.optimizer->options(0).betas[1], 0.999);
      for (uint64_t step = 4; step <= 6; ++step) {
        straight.Step(step);
        resumed.Step(step);
      }
      EXPECT_EQ(straight.Weights(), resumed.Weights());
      EXPECT_EQ(resumed.optimizer->views()[2].step(), 0);
    }
  }
}

TEST(StateDictTest, Contents) {
  TrainingRun run(DType::kBF16);
  run.Step(1);
  run.Step(2);
  const StateDict dict = run.optimizer->state_dict();
  EXPECT_EQ(dict.optimizer, "adamw");
  EXPECT_EQ(dict.groups.at(0).at("betas"), "0.9,0.999");
  const ParamState& p = dict.params.at("p1");
  EXPECT_EQ(p.step, 2);
  EXPECT_EQ(p.layout.logical_shape(), Shape({33, 17}));
  EXPECT_EQ(p.states.size(), 3u);
  for (const char* name : {"exp_avg", "exp_avg_sq", "master"}) {
    EXPECT_EQ(p.states.at(name).kind, StateKind::kElementwise);
    EXPECT_EQ(p.states.at(name).value.dtype(), DType::kF32);
  }
  EXPECT_EQ(dict.params.at("p3").step, 0);
  EXPECT_TRUE(dict.params.at("p3").states.empty());
}

TEST(StateDictTest, LoadedStatesAreCopies) {
  TrainingRun a(DType::kF32), b(DType::kF32);
  a.Step(1);
  ASSERT_TRUE(b.optimizer->load_state_dict(a.optimizer->state_dict()).ok());
  const std::vector<double> before = Values(b.optimizer->views()[0].state("exp_avg"));
  a.Step(2);
  EXPECT_EQ(Values(b.optimizer->views()[0].state("exp_avg")), before);
}

// A bf16 run's master becomes the weights of an f32 run: nothing of it is lost.
TEST(StateDictTest, MasterLoadsIntoF32Weights) {
  TrainingRun low(DType::kBF16), full(DType::kF32);
  low.Step(1);
  ASSERT_TRUE(full.optimizer->load_state_dict(low.optimizer->state_dict()).ok());
  EXPECT_EQ(Values(full.params[0]->data()), Values(low.optimizer->views()[0].own_master()));
}

TEST(StateDictTest, RefusesWhatDoesNotFitAndChangesNothing) {
  TrainingRun run(DType::kF32);
  run.Step(1);
  const StateDict good = Saved(*run.optimizer);
  const auto expect_refused = [&](const std::function<void(StateDict&)>& damage,
                                  const std::string& message) {
    StateDict dict = Saved(*run.optimizer);
    damage(dict);
    const absl::Status status = run.optimizer->load_state_dict(dict);
    EXPECT_FALSE(status.ok()) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    const StateDict now = run.optimizer->state_dict();
    EXPECT_EQ(now.groups, good.groups);
    for (const auto& [name, param] : good.params) {
      EXPECT_EQ(now.params.at(name).step, param.step);
      for (const auto& [key, state] : param.states) {
        EXPECT_EQ(Values(now.params.at(name).states.at(key).value), Values(state.value));
      }
    }
  };
  expect_refused([](StateDict& d) { d.optimizer = "sgd"; }, "saved by optimizer \"sgd\"");
  expect_refused([](StateDict& d) { d.groups.emplace_back(); }, "2 parameter groups, expected 1");
  expect_refused([](StateDict& d) { d.groups[0]["lr"] = "-1"; }, "lr is -1");
  expect_refused([](StateDict& d) { d.groups[0]["lr"] = "fast"; },
                 "expected a number, got \"fast\"");
  expect_refused([](StateDict& d) { d.groups[0]["speed"] = "1"; }, "unknown option \"speed\"");
  expect_refused([](StateDict& d) { d.params.erase("p1"); }, "parameter \"p1\" is missing");
  expect_refused([](StateDict& d) { d.params["q"] = {}; }, "parameter \"q\" is not one");
  expect_refused([](StateDict& d) { d.params["p1"].step = -1; }, "negative step");
  expect_refused([](StateDict& d) { d.params["p1"].states.erase("exp_avg"); },
                 "state \"exp_avg\" of \"p1\" is missing");
  expect_refused(
      [](StateDict& d) { d.params["p1"].states["momentum"] = d.params["p1"].states["exp_avg"]; },
      "state \"momentum\" of \"p1\" is not one");
  expect_refused([](StateDict& d) { d.params["p1"].states["exp_avg"].kind = StateKind::kRow; },
                 "saved as row, expected elementwise");
  expect_refused(
      [](StateDict& d) {
        d.params["p1"].states["exp_avg"].value = d.params["p2"].states["exp_avg"].value;
      },
      "has shape [], expected [33, 17]");
  expect_refused(
      [](StateDict& d) {
        d.params["p1"].layout = Layout({33, 17}, {.segments = {{0, 5}}});
      },
      "another layout");
  expect_refused([](StateDict& d) { d.groups[0]["amsgrad"] = "true"; }, "state \"max_exp_avg_sq\"");
}

TEST(StateDictTest, SgdFirstStepRuleSurvivesResume) {
  const ContextPtr context = TestContext();
  const ParameterPtr p = RandomParam("p", {4}, DType::kF64, context, 1);
  const SgdOptions options{.lr = 0.1, .momentum = 0.9, .dampening = 0.5};
  Sgd optimizer({p}, options);
  p->set_grad(Tensor::Full({4}, DType::kF64, 1, context));
  optimizer.step();
  EXPECT_EQ(Values(optimizer.views()[0].state("momentum_buffer"))[0], 1);  // no dampening at first
  const StateDict dict = Saved(optimizer);
  Sgd resumed({p}, options);
  ASSERT_TRUE(resumed.load_state_dict(dict).ok());
  resumed.step();
  EXPECT_DOUBLE_EQ(Values(resumed.views()[0].state("momentum_buffer"))[0], 0.9 + 0.5);
}

}  // namespace state_dict_test
}  // namespace apogee::optim
