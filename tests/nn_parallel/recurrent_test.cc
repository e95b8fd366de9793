// SPDX-License-Identifier: Apache-2.0

// Recurrent layers whose units are divided over ranks, against the whole layers on one rank.
#include "apogee/nn/parallel/recurrent.h"

#include <gmock/gmock.h>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/nn/layers.h"
#include "apogee/nn/parallel/sequence_parallel.h"
#include "apogee/nn/parallel/tensor_parallel.h"
#include "apogee/nn/recurrent.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee::nn::parallel {
namespace recurrent_test {

using ::apogee::testing::RandomTensor;
using ::apogee::testing::RunRanks;
using autograd::IsCut;
using comm::CollectiveKind;
using ::testing::HasSubstr;
using Values = std::vector<double>;

constexpr int64_t kFeatures = 5, kUnits = 12, kOut = 3;

struct Case {
  bool lstm = false;
  bool gather = false;  // else a row layer follows
  double dropout = 0;
};

// The layer's input is in a graph, too, so that its gradient is summed over the ranks.
class Model : public Module {
 public:
  explicit Model(const Case& setup)
      : in_(Register("in", std::make_shared<Linear>(4, kFeatures))),
        rnn_(Register("rnn", MakeLayer(setup))),
        out_(Register("out", std::make_shared<Linear>(kUnits, kOut))) {}
  Tensor Forward(const Tensor& x) override {
    result = rnn_->Run(autograd::Tanh((*in_)(x)), initial);
    return (*out_)(result.y);
  }
  Recurrent& rnn() { return *rnn_; }

  RecurrentState initial;
  Recurrent::Result result;

 private:
  static std::shared_ptr<Recurrent> MakeLayer(const Case& setup) {
    const RecurrentOptions options{.num_layers = 2, .dropout = setup.dropout};
    if (setup.lstm) return std::make_shared<Lstm>(kFeatures, kUnits, options);
    return std::make_shared<Gru>(kFeatures, kUnits, options);
  }

  std::shared_ptr<Linear> in_;
  std::shared_ptr<Recurrent> rnn_;
  std::shared_ptr<Linear> out_;
};

ParallelPlan PlanFor(const Case& setup) {
  ParallelPlan plan{.name = "rnn",
                    .rules = {{.pattern = "rnn", .style = ParallelStyle::kColumnGather}}};
  if (setup.gather) return plan;
  plan.rules[0].style = ParallelStyle::kColumn;
  plan.rules.push_back({.pattern = "out", .style = ParallelStyle::kRow});
  return plan;
}

// Trains by gradient descent; returns all values after the last step, and the last results.
struct Outcome {
  testing::Weights weights;
  Values logits, h, c, dh0;
};
Outcome Train(const Case& setup, int steps, const ContextPtr& context,
              const comm::GroupPtr& group) {
  Model model(setup);
  model.Initialize(context, {.seed = 5, .dtype = DType::kF64});
  std::unique_ptr<TensorParallel> parallel;
  if (group != nullptr) {
    parallel = std::make_unique<TensorParallel>(model, PlanFor(setup), group);
    parallel->Apply();
  }
  const auto random = [&](const Shape& shape, const std::string& name) {
    return RandomTensor(shape, name, context);
  };
  Parameter h0("h0", random({2, 3, kUnits}, "h0"));
  Outcome outcome;
  for (int step = 0; step < steps; ++step) {
    model.initial = {.h = h0.value(), .c = setup.lstm ? random({2, 3, kUnits}, "c0") : Tensor()};
    h0.zero_grad();
    for (const ParameterPtr& parameter : model.Parameters()) parameter->zero_grad();
    const Tensor y = model(random({3, 5, 4}, "x" + std::to_string(step)));
    EXPECT_EQ(IsCut(model.result.y), group != nullptr && !setup.gather);
    EXPECT_FALSE(IsCut(y));
    autograd::Backward(y, {.grad = random(y.shape(), "dy")});
    for (const ParameterPtr& parameter : model.Parameters()) {
      ops::Accumulate(parameter->data(), parameter->grad(), -0.1);
    }
    outcome.logits = y.Detach().ToVector<double>();
  }
  for (const ParameterPtr& parameter : model.Parameters()) {
    const Tensor whole = parallel != nullptr ? parallel->Whole(*parameter) : parameter->data();
    outcome.weights[parameter->name()] = whole.ToVector<double>();
  }
  outcome.h = model.result.state.h.ToVector<double>();
  if (setup.lstm) outcome.c = model.result.state.c.ToVector<double>();
  outcome.dh0 = h0.grad().ToVector<double>();
  return outcome;
}

testing::Weights StartOf(const Case& setup) {
  Model model(setup);
  model.Initialize(CpuContext(), {.seed = 5, .dtype = DType::kF64});
  return testing::WeightsOf(model);
}

class UnitParallelTest : public ::testing::TestWithParam<std::tuple<int, bool, bool>> {};

TEST_P(UnitParallelTest, TrainsAsOneRank) {
  const auto [tp, lstm, gather] = GetParam();
  for (const double dropout : {0.0, 0.4}) {
    const Case setup{.lstm = lstm, .gather = gather, .dropout = dropout};
    const Outcome want = Train(setup, 4, CpuContext(), nullptr);
    RunRanks(tp, [&](comm::World& world) {
      const Outcome got = Train(setup, 4, world.context(), world.group());
      const auto worst = testing::WorstUpdateError(StartOf(setup), want.weights, got.weights);
      EXPECT_LE(worst.error, 1e-12) << worst.name;
      ExpectClose(got.logits, want.logits, 1e-12);
      ExpectClose(got.h, want.h, 1e-12);
      ExpectClose(got.c, want.c, 1e-12);
      ExpectClose(got.dh0, want.dh0, 1e-12);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, UnitParallelTest,
                         ::testing::Combine(::testing::Values(2, 3, 4), ::testing::Bool(),
                                            ::testing::Bool()));

// A step gathers the state once; backward sums its gradient once, but not before the first step.
TEST(UnitParallelTest, OneGatherPerStep) {
  RunRanks(2, [](comm::World& world) {
    Gru gru(kFeatures, kUnits);
    Container model;
    model.Register("rnn", std::shared_ptr<Gru>(&gru, [](Gru*) {}));
    model.Initialize(world.context(), {.seed = 5});
    TensorParallel parallel(
        model, {.name = "rnn", .rules = {{.pattern = "rnn", .style = ParallelStyle::kColumn}}},
        world.group());
    parallel.Apply();
    const Tensor y = gru(RandomTensor({3, 5, kFeatures}, "x", world.context(), 1, DType::kF32));
    EXPECT_EQ(y.shape(), Shape({3, 5, kUnits / 2}));
    const comm::Traffic& traffic = world.group()->traffic();
    EXPECT_EQ(traffic.calls(CollectiveKind::kAllGather), 5);
    autograd::Backward(y, {.grad = Tensor::Full(y.shape(), DType::kF32, 1, world.context())});
    EXPECT_EQ(traffic.calls(CollectiveKind::kAllReduce), 4);
    EXPECT_EQ(traffic.total_calls(), 9);
  });
}

std::string ProblemsOf(const PlanRule& rule, int tp) {
  Container model;
  model.Register("encoder", std::make_shared<Gru>(kFeatures, kUnits));
  std::string all;
  for (const std::string& problem : PlanProblems(model, {.name = "rnn", .rules = {rule}}, tp)) {
    all += problem + "\n";
  }
  return all;
}

TEST(UnitParallelTest, PlansThatDoNotFit) {
  using enum ParallelStyle;
  EXPECT_EQ(ProblemsOf({.pattern = "encoder", .style = kColumn}, 4), "");
  EXPECT_THAT(ProblemsOf({.pattern = "encoder", .style = kColumn}, 5),
              HasSubstr("\"encoder\" (column): tp 5 does not divide the 12 units of encoder"));
  EXPECT_THAT(ProblemsOf({.pattern = "encoder", .style = kRow}, 2),
              HasSubstr("(row): encoder is a recurrent layer, whose units only the styles column "
                        "and column_gather cut"));
  EXPECT_THAT(ProblemsOf({.pattern = "encoder", .style = kColumn, .sections = 3}, 2),
              HasSubstr("sections is 3, but the sections of encoder are its 3 gates"));
  EXPECT_THAT(ProblemsOf({.pattern = "decoder", .style = kColumn}, 2),
              HasSubstr("layers here are encoder"));
}

TEST(UnitParallelTest, LayersThatMixTokensCannotBeInsideSequenceParallelism) {
  Container model;
  model.Register("rnn", std::make_shared<Lstm>(kFeatures, kUnits));
  model.Register("conv", std::make_shared<Conv1d>(4, 4, 3));
  model.Register("pool", std::make_shared<MaxPool1d>(2));
  model.Register("group", std::make_shared<GroupNorm>(2, 4));
  model.Register("batch", std::make_shared<BatchNorm>(4));
  model.Register("fc", std::make_shared<nn::Linear>(4, 4));
  const ParallelPlan plan{.name = "mixed",
                          .rules = {{.pattern = "fc", .style = ParallelStyle::kColumn}}};
  std::string problems;
  for (const std::string& problem :
       SequenceProblems(model, plan, SequenceMode::kSplitGather, 2, 2)) {
    problems += problem + "\n";
  }
  for (const std::string name : {"rnn", "conv", "pool", "group", "batch"}) {
    EXPECT_THAT(problems, HasSubstr(name + " mixes tokens outside of an nn::AttentionCore"));
  }
  EXPECT_THAT(problems, Not(HasSubstr("fc mixes")));
}

}  // namespace recurrent_test
}  // namespace apogee::nn::parallel
