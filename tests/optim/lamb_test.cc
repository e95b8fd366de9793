// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/adam/lamb.h"

#include <algorithm>

#include "apogee/tests/optim/layerwise_checks.h"

namespace apogee::optim {
namespace lamb_test {

MakeOptimizer Make(const LambOptions& o) {
  return [o](auto params) { return std::make_unique<Lamb>(params, o); };
}

TensorRule Rule(LambOptions o) {
  return [o](const Shape& shape, Vector& w, const Vector& g, Vectors& s, int t) {
    Vector &m = s["m"], &v = s["v"], u(w.size());
    m.resize(w.size());
    v.resize(w.size());
    const double c1 = o.bias_correction ? 1 - std::pow(o.betas[0], t) : 1;
    const double c2 = o.bias_correction ? 1 - std::pow(o.betas[1], t) : 1;
    for (size_t i = 0; i < w.size(); ++i) {
      m[i] = o.betas[0] * m[i] + (o.grad_averaging ? 1 - o.betas[0] : 1) * g[i];
      v[i] = o.betas[1] * v[i] + (1 - o.betas[1]) * g[i] * g[i];
      u[i] = o.correct_lr ? m[i] / (std::sqrt(v[i]) + o.eps)
                          : m[i] / c1 / (std::sqrt(v[i] / c2) + o.eps);
      u[i] += o.weight_decay * w[i];
    }
    double ratio = 1;
    const bool trusted = !o.adam && !(o.ratio_needs_decay && o.weight_decay == 0) &&
                         !(o.matrices_only && shape.rank() < 2);
    if (trusted && Norm(w) > 0 && Norm(u) > 0) {
      ratio = std::max(Norm(w) / Norm(u), o.min_ratio);
      if (o.max_ratio > 0) ratio = std::min(ratio, o.max_ratio);
    }
    const double lr = o.lr * (o.correct_lr ? std::sqrt(c2) / c1 : 1);
    for (size_t i = 0; i < w.size(); ++i) w[i] -= lr * ratio * u[i];
  };
}

TEST(LambTest, Equations) {
  LambOptions apex = LambOptions::Apex();
  apex.pre_clip_norm = 0;  // over all parameters: a test of its own
  for (LambOptions o :
       {LambOptions{.weight_decay = 0.1},
        LambOptions{.betas = {0.8, 0.95}, .bias_correction = false},
        LambOptions{.grad_averaging = false}, LambOptions{.min_ratio = 0.9, .max_ratio = 1.1},
        LambOptions{.adam = true}, LambOptions{.matrices_only = true}, apex,
        LambOptions{.weight_decay = 0, .ratio_needs_decay = true}, LambOptions::Colossal(),
        LambOptions{.weight_decay = 0.1, .correct_lr = true}, LambOptions::DeepSpeed()}) {
    o.lr = 0.02;
    CheckEquations(Make(o), Rule(o), 12);
  }
}

TEST(LambTest, EverythingElse) {
  CheckEverythingButEquations(Make({.lr = 0.02, .weight_decay = 0.1}));
  CheckEverythingButEquations(Make({.lr = 0.02, .weight_decay = 0.1, .pre_clip_norm = 3}));
}

// Where the three forms part: in the fourth digit of the weight.
TEST(LambTest, FirstStepOfEachForm) {
  const ContextPtr context = TestContext();
  const auto first_step = [&](LambOptions o) {
    o.weight_decay = 0.01;
    const auto p = std::make_shared<Parameter>("p", Tensor::FromVector(Vector{3, 4}, {2}, context));
    Lamb optimizer({p}, o);
    p->set_grad(Tensor::FromVector(Vector{0.1, -0.2}, {2}, context));
    optimizer.step();
    return Values(p->data());
  };
  const auto expect = [](const Vector& w, double a, double b) {
    EXPECT_NEAR(w[0], a, 1e-8);
    EXPECT_NEAR(w[1], b, 1e-8);
  };
  expect(first_step({}), 2.99634237, 4.00340907);
  expect(first_step(LambOptions::Colossal()), 2.99642576, 4.00349640);
  expect(first_step({.correct_lr = true}), 2.99886973, 4.00110566);
}

// Gradients that are clipped to a norm are gradients divided by the excess.
TEST(LambTest, PreClipUsesTheNormOfAllParameters) {
  const ContextPtr context = TestContext();
  const auto run = [&](double pre_clip_norm, double scale) {
    const auto a = RandomParam("a", {3, 4}, DType::kF64, context, 1);
    const auto b = RandomParam("b", {5}, DType::kF64, context, 2);
    Lamb optimizer({a, b}, {.lr = 0.1, .eps = 0.1, .pre_clip_norm = pre_clip_norm});
    a->set_grad(RandomTensor({3, 4}, DType::kF64, context, 3, scale));
    b->set_grad(RandomTensor({5}, DType::kF64, context, 4, scale));
    optimizer.step();
    return std::pair{Values(a->data()), Values(b->data())};
  };
  const double norm = std::hypot(Norm(RandomValues(12, 3)), Norm(RandomValues(5, 4)));
  const auto clipped = run(norm / 2, 1), halved = run(0, 0.5);
  for (size_t i = 0; i < 12; ++i) EXPECT_NEAR(clipped.first[i], halved.first[i], 1e-14);
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(clipped.second[i], halved.second[i], 1e-14);
  EXPECT_EQ(run(norm * 2, 1), run(0, 1));
}

TEST(LambTest, ZeroNormsHaveRatioOne) {
  const ContextPtr context = TestContext();
  const auto zero = std::make_shared<Parameter>("zero", Tensor::Zeros({3}, DType::kF64, context));
  const auto still = RandomParam("still", {3}, DType::kF64, context, 1);
  const Vector before = Values(still->data());
  Lamb optimizer({zero, still}, {.lr = 0.1, .eps = 0});
  zero->set_grad(Tensor::Full({3}, DType::kF64, 2, context));
  still->set_grad(RandomTensor({3}, DType::kF64, context, 1, 1e-300));  // squares underflow to 0
  optimizer.step();
  for (const double w : Values(zero->data())) EXPECT_NEAR(w, -0.1, 1e-12);
}

TEST(LambTest, StateBytesAndProblems) {
  Trainee run(Make({}), DType::kF32, {{33, 17}, {5}});
  run.Step(1);
  EXPECT_EQ(StateBytes(*run.optimizer), 8 * (33 * 17 + 5));
  EXPECT_EQ(
      ProblemsOf(LambOptions{.lr = -1, .betas = {1, 2}, .eps = -1, .min_ratio = 2, .max_ratio = 1})
          .size(),
      5u);
}

}  // namespace lamb_test
}  // namespace apogee::optim
