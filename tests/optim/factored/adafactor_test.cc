// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/factored/adafactor.h"

#include <gmock/gmock-matchers.h>

#include <algorithm>

#include "apogee/tests/optim/factored/factored_rule.h"
#include "apogee/tests/optim/layerwise_checks.h"

namespace apogee::optim {
namespace adafactor_test {

using ::testing::HasSubstr;

MakeOptimizer Make(const AdafactorOptions& o) {
  return [o](auto params) { return std::make_unique<Adafactor>(params, o); };
}
AdafactorOptions WithLr(AdafactorOptions o) {
  o.relative_step = false;
  return o;
}

double Rms(const Vector& x) { return Norm(x) / std::sqrt(static_cast<double>(x.size())); }

TensorRule Rule(AdafactorOptions o) {
  return [o](const Shape& shape, Vector& w, const Vector& g, Vectors& s, int t) {
    const double beta2 = 1 - std::pow(t, o.decay_rate);
    double alpha =
        o.relative_step ? std::min(o.warmup_init ? 1e-6 * t : 1e-2, 1 / std::sqrt(t)) : o.lr;
    if (o.scale_parameter) alpha *= std::max(o.eps[1], Rms(w));
    Vector u = Normalize(shape, g, beta2, o.eps[0], s, "sq");
    const double clip = std::max(1.0, Rms(u) / o.clip_threshold);
    Vector& m = s["m"];
    m.resize(w.size());
    for (size_t i = 0; i < w.size(); ++i) {
      u[i] *= alpha / clip;
      if (o.beta1 > 0) u[i] = m[i] = o.beta1 * m[i] + (1 - o.beta1) * u[i];
      w[i] -= o.weight_decay * alpha * w[i] + u[i];
    }
  };
}

// torch.optim: one matrix product for the mean squares, floors instead of a summand.
TensorRule TorchRule(AdafactorOptions o) {
  return [o](const Shape& shape, Vector& w, const Vector& g, Vectors& s, int t) {
    const double keep = 1 - std::pow(t, o.decay_rate);
    const double alpha = std::max(o.eps[1], Rms(w)) * std::min(o.lr, 1 / std::sqrt(t));
    const Dims d(shape);
    Vector v(w.size()), u(w.size());
    if (d.factored) {
      const auto [row, column] = MeanSquares(d, g, keep, 0, s, "sq");
      for (size_t i = 0; i < w.size(); ++i) {
        v[i] = row[d.Row(i)] * column[d.Column(i)] /
               std::max(MeanOverRows(d, row, d.Row(i)), o.eps[0]);
      }
    } else {
      Vector& full = s["sq"];
      full.resize(w.size());
      for (size_t i = 0; i < w.size(); ++i)
        v[i] = full[i] = keep * full[i] + (1 - keep) * g[i] * g[i];
    }
    for (size_t i = 0; i < w.size(); ++i)
      u[i] = g[i] / std::sqrt(std::max(v[i], o.eps[0] * o.eps[0]));
    const double clip = std::max(1.0, Rms(u) / o.clip_threshold);
    for (size_t i = 0; i < w.size(); ++i) {
      w[i] -= o.lr * o.weight_decay * w[i] + alpha / clip * u[i];
    }
  };
}

TEST(AdafactorTest, Equations) {
  for (const AdafactorOptions& o :
       {AdafactorOptions{}, AdafactorOptions{.weight_decay = 0.1, .warmup_init = true},
        AdafactorOptions{.beta1 = 0.8}, AdafactorOptions{.eps = {1e-30, 3}}, WithLr({.lr = 0.01}),
        WithLr({.lr = 0.01,
        .eps = {1e-4, 1e-3},
        .clip_threshold = 0.3,
        .decay_rate = -0.5,
        .beta1 = 0.9,
        .weight_decay = 0.1,
        .scale_parameter = false})}) {
    CheckEquations(Make(o), Rule(o));
  }
}

TEST(AdafactorTest, TorchEquations) {
  AdafactorOptions o = AdafactorOptions::Torch();
  o.weight_decay = 0.1;
  o.eps[0] = 0.05;  // large enough to act
  CheckEquations(Make(o), TorchRule(o));
  o.lr = 10;  // capped by 1 / sqrt(t)
  o.weight_decay = 0;
  CheckEquations(Make(o), TorchRule(o));
}

TEST(AdafactorTest, TorchFloorIsTheMachineEpsilon) {
  const auto run = [](double eps) {
    AdafactorOptions o = AdafactorOptions::Torch();
    o.eps[0] = eps;
    Trainee trainee(Make(o), DType::kF32, {{33, 17}, {7}});
    for (int step = 1; step <= 3; ++step) trainee.Step(step);
    return trainee.Weights();
  };
  EXPECT_EQ(run(0), run(1.1920928955078125e-07));
}

TEST(AdafactorTest, EverythingElse) {
  CheckEverythingButEquations(Make({.weight_decay = 0.1}));
  CheckEverythingButEquations(Make(WithLr({.lr = 0.01, .beta1 = 0.9, .scale_parameter = false})));
  CheckEverythingButEquations(Make(AdafactorOptions::Torch()));
}

// f32 and f64 parameters in one optimizer: the statistics of both are f64.
TEST(AdafactorTest, MixedDTypes) {
  const ContextPtr context = TestContext();
  const auto run = [&](std::vector<DType> dtypes) {
    std::vector<ParameterPtr> params;
    for (size_t p = 0; p < dtypes.size(); ++p) {
      params.push_back(RandomParam(internal::Concat("p", p), {33, 17}, dtypes[p], context, 1));
      params[p]->set_grad(RandomTensor({33, 17}, dtypes[p], context, 2));
    }
    Adafactor optimizer(params, {});
    optimizer.step();
    return std::pair{Values(params.front()->data()), Values(params.back()->data())};
  };
  const auto mixed = run({DType::kF32, DType::kF64});
  EXPECT_EQ(mixed.second, run({DType::kF64}).second);
  for (size_t i = 0; i < mixed.first.size(); ++i)
    EXPECT_NEAR(mixed.first[i], mixed.second[i], 1e-6);
}

TEST(AdafactorTest, StateBytesAreSublinear) {
  Trainee run(Make({}), DType::kF32, {{33, 17}, {4, 6, 5}, {5}});
  run.Step(1);
  EXPECT_EQ(StateBytes(*run.optimizer), 4 * (33 + 17 + 4 * (6 + 5) + 5));
  Trainee momentum(Make({.beta1 = 0.9}), DType::kF32, {{33, 17}});
  momentum.Step(1);
  EXPECT_EQ(StateBytes(*momentum.optimizer), 4 * (33 + 17 + 33 * 17));
}

TEST(AdafactorTest, Problems) {
  EXPECT_TRUE(ProblemsOf(AdafactorOptions{}).empty());
  EXPECT_TRUE(ProblemsOf(AdafactorOptions::Torch()).empty());
  EXPECT_THAT(ProblemsOf(AdafactorOptions({.lr = 0.1})).at(0),
              HasSubstr("set relative_step=false"));
  EXPECT_THAT(ProblemsOf(WithLr({})).at(0), HasSubstr("needs lr"));
  const AdafactorOptions wrong{.lr = -1,
                               .eps = {0, -1},
                               .clip_threshold = 0,
                               .decay_rate = 1,
                               .beta1 = 1,
                               .weight_decay = -1,
                               .relative_step = false,
                               .warmup_init = true};
  EXPECT_EQ(ProblemsOf(wrong).size(), 8u);
}

// A schedule may not silently be without effect.
TEST(AdafactorTest, RelativeStepRefusesASchedule) {
  Trainee run(Make({}), DType::kF32, {{3, 4}});
  run.optimizer->set_lr(0, run.optimizer->lr(0));
  EXPECT_THROW(run.optimizer->set_lr(0, 0.1), Error);
}

}  // namespace adafactor_test
}  // namespace apogee::optim
