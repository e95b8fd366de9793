// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/factored/came.h"

#include <algorithm>

#include "apogee/tests/optim/factored/factored_rule.h"
#include "apogee/tests/optim/layerwise_checks.h"

namespace apogee::optim {
namespace came_test {

MakeOptimizer Make(const CameOptions& o) {
  return [o](auto params) { return std::make_unique<Came>(params, o); };
}

double Rms(const Vector& x) { return Norm(x) / std::sqrt(static_cast<double>(x.size())); }

TensorRule Rule(CameOptions o) {
  return [o](const Shape& shape, Vector& w, const Vector& g, Vectors& s, int) {
    Vector u = Normalize(shape, g, o.betas[1], o.eps[0], s, "sq");
    const double clip = std::max(1.0, Rms(u) / o.clip_threshold);
    Vector& m = s["m"];
    m.resize(w.size());
    Vector residual(w.size());
    for (size_t i = 0; i < w.size(); ++i) {
      u[i] /= clip;
      m[i] = o.betas[0] * m[i] + (1 - o.betas[0]) * u[i];
      residual[i] = u[i] - m[i];
    }
    const Dims d(shape);
    const Vector step = d.factored ? Divide(d, m, residual, o.betas[2], o.eps[1], s, "res") : m;
    for (size_t i = 0; i < w.size(); ++i) {
      w[i] *= 1 - o.lr * o.weight_decay;
      w[i] -= o.lr * step[i];
    }
  };
}

TEST(CameTest, Equations) {
  for (const CameOptions& o :
       {CameOptions{.lr = 1e-3},
        CameOptions{.lr = 1e-3, .betas = {0.8, 0.95, 0.99}, .weight_decay = 0.1},
        CameOptions{.lr = 1e-3, .eps = {1e-4, 1e-3}, .clip_threshold = 0.4}}) {
    CheckEquations(Make(o), Rule(o));
  }
}

TEST(CameTest, EverythingElse) {
  CheckEverythingButEquations(Make({.lr = 1e-3, .weight_decay = 0.1}));
}

// The residual is not clipped, so the first step of a matrix has an rms near 0.1 / (0.9 * 0.01) =
// 11 lr.
TEST(CameTest, FirstStepIsLarge) {
  Trainee run(Make({.lr = 1}), DType::kF64, {{64, 48}});
  const Vector before = run.Weights()[0];
  run.Step(1);
  Vector step = run.Weights()[0];
  for (size_t i = 0; i < step.size(); ++i) step[i] -= before[i];
  EXPECT_NEAR(Rms(step), 11.1, 1);
}

TEST(CameTest, StateBytesAndProblems) {
  Trainee run(Make({}), DType::kF32, {{33, 17}, {4, 6, 5}, {5}});
  run.Step(1);
  EXPECT_EQ(StateBytes(*run.optimizer),
            4 * (33 * 17 + 120 + 5) + 8 * (33 + 17 + 4 * (6 + 5)) + 4 * 5);
  EXPECT_EQ(
      ProblemsOf(CameOptions{.lr = -1, .eps = {0, 0}, .clip_threshold = 0, .betas = {1, 1, 1}})
          .size(),
      7u);
}

}  // namespace came_test
}  // namespace apogee::optim
