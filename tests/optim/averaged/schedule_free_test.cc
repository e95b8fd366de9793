// SPDX-License-Identifier: Apache-2.0

// The schedule-free optimizers against the three sequences of the paper in double; averages that
// come and go; skipped steps; bad options. `apogee verify` replays the authors' code.
#include "apogee/optim/averaged/schedule_free.h"

#include <gmock/gmock-matchers.h>

#include <cmath>
#include <limits>

#include "apogee/optim/adam/adam.h"
#include "apogee/optim/averaged/evaluation_weights.h"
#include "apogee/tests/optim/layerwise_checks.h"
#include "apogee/tests/support/says.h"

namespace apogee::optim {
namespace schedule_free_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Says;

template <typename Opt>
MakeOptimizer Make(const typename Opt::Options& o) {
  return [o](auto params) { return std::make_unique<Opt>(params, o); };
}

// x, y, z of a tensor.
struct Sequences {
  explicit Sequences(const Vector& w) : x(w), y(w), z(w), v(w.size()), m(w.size()) {}
  Vector x, y, z, v, m;
};

// Of a group.
struct Count {
  double t = 0, lr = 0, lr_max = 0, sum = 0, c = 0;
  void Advance(double rate, double warmup, double r, double power) {
    t += 1;
    lr = rate * std::min(1.0, t / std::max(warmup, 1.0));
    lr_max = std::max(lr_max, lr);
    const double weight = std::pow(t, r) * std::pow(lr_max, power);
    sum += weight;
    c = sum == 0 ? 0 : weight / sum;
  }
};

double Direction(const ScheduleFreeSgdOptions&, const Count&, Sequences&, size_t, double g) {
  return g;
}
double Direction(const ScheduleFreeAdamWOptions& o, const Count& n, Sequences& s, size_t i,
                 double g) {
  s.v[i] = o.betas[1] * s.v[i] + (1 - o.betas[1]) * g * g;
  s.m[i] = o.inner_momentum * s.m[i] + (1 - o.inner_momentum) * g;
  return s.m[i] / (1 - std::pow(o.inner_momentum, n.t)) /
         (std::sqrt(s.v[i] / (1 - std::pow(o.betas[1], n.t))) + o.eps);
}

template <typename O>
void Move(const O& o, const Count& n, const Vector& g, Sequences& s) {
  for (size_t i = 0; i < g.size(); ++i) {
    const double u = Direction(o, n, s, i, g[i]) + o.weight_decay * s.y[i];
    s.z[i] -= n.lr * u;
    s.x[i] = (1 - n.c) * s.x[i] + n.c * s.z[i];
    s.y[i] = (1 - o.beta()) * s.z[i] + o.beta() * s.x[i];
  }
}

template <typename Opt>
void CheckSequences(const typename Opt::Options& o) {
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    Trainee run(Make<Opt>(o), dtype, LayerwiseShapes());
    const std::vector<Vector> init = run.Weights();
    std::vector<Sequences> expected(init.begin(), init.end());
    Count count;
    constexpr int kSteps = 20;
    for (int step = 1; step <= kSteps; ++step) {
      run.Step(step);
      count.Advance(o.lr, static_cast<double>(o.warmup_steps), o.r, o.weight_lr_power);
      for (size_t p = 0; p < init.size(); ++p) {
        if (Trainee::Absent(p, step)) continue;
        const Vector g = Values(Tensor::FromVector(Trainee::Grad(run.shapes[p], p, step),
                                                   run.shapes[p], run.context, dtype));
        Move(o, count, g, expected[p]);
      }
    }
    const auto compare = [&](const char* what, const Vector& got, const Vector& want, size_t p) {
      Vector error(got.size()), update(got.size());
      for (size_t i = 0; i < got.size(); ++i) {
        error[i] = got[i] - want[i];
        update[i] = want[i] - init[p][i];
      }
      const double ulp = dtype == DType::kF64 ? 2.2e-16 : 1.2e-7;
      EXPECT_LE(Norm(error),
                Tolerance(dtype, ErrorKind::kEndToEnd) * Norm(update) + kSteps * ulp * Norm(want))
          << what << " " << DTypeName(dtype) << " " << run.shapes[p];
    };
    const std::vector<Vector> trained = run.Weights();
    for (size_t p = 0; p < init.size(); ++p) {
      compare("y", trained[p], expected[p].y, p);
      compare("z", Values(run.optimizer->views()[p].state("z")), expected[p].z, p);
    }
    {
      const EvaluationWeights averages(*run.optimizer);
      for (size_t p = 0; p < init.size(); ++p) compare("x", run.Weights()[p], expected[p].x, p);
    }
    EXPECT_EQ(run.Weights(), trained);
    const GroupState& state = run.optimizer->group_state(0);
    EXPECT_EQ(state.at("k"), Vector{kSteps});
    EXPECT_DOUBLE_EQ(state.at("lr_max").at(0), count.lr_max);
    EXPECT_DOUBLE_EQ(state.at("weight_sum").at(0), count.sum);
  }
}

TEST(ScheduleFreeTest, TheSequencesOfThePaper) {
  CheckSequences<ScheduleFreeAdamW>({.lr = 0.01});
  CheckSequences<ScheduleFreeAdamW>({.lr = 0.01,
                                     .betas = {0.8, 0.95},
                                     .eps = 1e-6,
                                     .weight_decay = 0.1,
                                     .warmup_steps = 7,
                                     .r = 0.5,
                                     .weight_lr_power = 1});
  CheckSequences<ScheduleFreeAdamW>({.lr = 0.01, .warmup_steps = 3, .inner_momentum = 0.9});
  CheckSequences<ScheduleFreeSgd>({.lr = 0.1});
  CheckSequences<ScheduleFreeSgd>(
      {.lr = 0.1, .momentum = 0.7, .weight_decay = 0.1, .warmup_steps = 7, .r = 1});
}

TEST(ScheduleFreeTest, EverythingElse) {
  CheckEverythingButEquations(
      Make<ScheduleFreeAdamW>({.lr = 0.01, .weight_decay = 0.1, .warmup_steps = 4}));
  CheckEverythingButEquations(
      Make<ScheduleFreeAdamW>({.lr = 0.01, .weight_decay = 0.1, .inner_momentum = 0.9}));
  CheckEverythingButEquations(Make<ScheduleFreeSgd>({.lr = 0.1, .weight_decay = 0.1, .r = 1}));
}

// In bf16 the averages are made of the masters, and masters and weights get their bits back.
TEST(ScheduleFreeTest, AveragesAreThoseOfTheMasters) {
  const auto make = Make<ScheduleFreeAdamW>({.lr = 0.05});
  Trainee run(make, DType::kBF16, {{33, 17}, {5}});
  for (int step = 1; step <= 3; ++step) run.Step(step);
  const auto weights = run.Weights();
  const ParamView& view = run.optimizer->views()[0];
  const Vector y = Values(view.own_master()), z = Values(view.state("z"));
  {
    const EvaluationWeights averages(*run.optimizer);
    const Vector x = Values(view.own_master());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(x[i], y[i] + (1 - 1 / 0.9) * (z[i] - y[i]), 1e-6);
    }
    EXPECT_EQ(Values(view.own_master().To(DType::kBF16)), run.Weights()[0]);
    EXPECT_NE(run.Weights(), weights);
  }
  EXPECT_EQ(Values(view.own_master()), y);
  EXPECT_EQ(run.Weights(), weights);
}

TEST(ScheduleFreeTest, NoStepWhileTheAveragesAreThere) {
  Trainee run(Make<ScheduleFreeSgd>({.lr = 0.1}), DType::kF32, {{3, 5}});
  {
    const EvaluationWeights averages(*run.optimizer);  // before the first step: the weights
  }
  run.Step(1);
  const auto weights = run.Weights();
  const Vectors states = run.States();
  {
    const EvaluationWeights averages(*run.optimizer);
    EXPECT_THAT([&] { run.Step(2); }, Says(AllOf(HasSubstr("step: "), HasSubstr("destroy"))));
    EXPECT_THAT([&] { const EvaluationWeights again(*run.optimizer); },
                Says(HasSubstr("weights to evaluate")));
  }
  EXPECT_EQ(run.Weights(), weights);
  EXPECT_EQ(run.States(), states);
  run.Step(2);
  EXPECT_NE(run.Weights(), weights);

  Trainee plain([](auto params) { return std::make_unique<AdamW>(params, AdamWOptions{}); },
                DType::kF32, {{3, 5}});
  const EvaluationWeights same(*plain.optimizer);
  plain.Step(1);
}

// A listener that fails, as a gather over ranks may, leaves the weights as they were.
TEST(ScheduleFreeTest, AFailureOnTheWayInLeavesTheWeights) {
  struct Fails : StepListener {
    void WeightsReplaced() override { Throw("the network is gone"); }
  } fails;
  Trainee run(Make<ScheduleFreeSgd>({.lr = 0.1}), DType::kBF16, {{3, 5}});
  run.Step(1);
  const auto weights = run.Weights();
  const Vector master = Values(run.optimizer->views()[0].own_master());
  {
    const Subscription own = run.optimizer->AddListener(fails);
    EXPECT_THAT([&] { const EvaluationWeights averages(*run.optimizer); },
                Says(HasSubstr("the network is gone")));
  }
  EXPECT_EQ(run.Weights(), weights);
  EXPECT_EQ(Values(run.optimizer->views()[0].own_master()), master);
  run.Step(2);
}

TEST(ScheduleFreeTest, ASkippedStepLeavesEverything) {
  Trainee run(Make<ScheduleFreeAdamW>({.lr = 0.01, .warmup_steps = 9}), DType::kF32, {{3, 5}, {2}});
  run.Step(1);
  run.Step(2);
  run.optimizer->last_step();
  const auto weights = run.Weights();
  const Vectors states = run.States();
  const GroupState group = run.optimizer->group_state(0);
  run.params[0]->set_grad(Tensor::Full(run.shapes[0], DType::kF32,
                                       std::numeric_limits<double>::infinity(), run.context));
  run.optimizer->step();
  EXPECT_EQ(run.optimizer->group_state(0), group);
  EXPECT_TRUE(run.optimizer->last_step().skip);
  EXPECT_EQ(run.Weights(), weights);
  EXPECT_EQ(run.States(), states);
}

TEST(ScheduleFreeTest, StateBytesAndProblems) {
  Trainee adam(Make<ScheduleFreeAdamW>({}), DType::kF32, {{33, 17}, {5}});
  adam.Step(1);
  EXPECT_EQ(StateBytes(*adam.optimizer), 8 * (33 * 17 + 5));
  Trainee sgd(Make<ScheduleFreeSgd>({}), DType::kF32, {{33, 17}, {5}});
  sgd.Step(1);
  EXPECT_EQ(StateBytes(*sgd.optimizer), 4 * (33 * 17 + 5));
  EXPECT_EQ(
      ProblemsOf(ScheduleFreeAdamWOptions{.lr = -1, .betas = {0, 1}, .warmup_steps = -1, .r = -1})
          .size(),
      5U);
  EXPECT_EQ(ProblemsOf(ScheduleFreeSgdOptions{.momentum = 0, .weight_lr_power = -1}).size(), 2U);
  StateDict dict = sgd.optimizer->state_dict();
  dict.group_states[0] = {{"k", {1, 2}}};
  EXPECT_THAT(std::string(sgd.optimizer->CheckStateDict(dict).message()),
              HasSubstr("\"k\" has 2 numbers, expected 1"));
  dict.group_states[0] = {{"steps", {1}}};
  EXPECT_THAT(std::string(sgd.optimizer->CheckStateDict(dict).message()),
              HasSubstr("\"steps\" is not one of schedule_free_sgd's"));
}

}  // namespace schedule_free_test
}  // namespace apogee::optim
