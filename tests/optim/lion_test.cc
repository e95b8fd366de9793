// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/momentum/lion.h"

#include "apogee/tests/optim/layerwise_checks.h"

namespace apogee::optim {
namespace lion_test {

MakeOptimizer Make(const LionOptions& o) {
  return [o](auto params) { return std::make_unique<Lion>(params, o); };
}

TensorRule Rule(LionOptions o) {
  return [o](const Shape&, Vector& w, const Vector& g, Vectors& s, int) {
    Vector& m = s["m"];
    m.resize(w.size());
    for (size_t i = 0; i < w.size(); ++i) {
      const double grad = o.maximize ? -g[i] : g[i];
      const double c = o.betas[0] * m[i] + (1 - o.betas[0]) * grad;
      w[i] *= 1 - o.lr * o.weight_decay;
      w[i] -= o.lr * static_cast<double>((c > 0) - (c < 0));
      m[i] = o.betas[1] * m[i] + (1 - o.betas[1]) * grad;
    }
  };
}

TEST(LionTest, Equations) {
  for (const LionOptions& o :
       {LionOptions{.lr = 0.01}, LionOptions{.lr = 0.01, .betas = {0.8, 0.6}, .weight_decay = 0.5},
        LionOptions{.lr = 0.01, .maximize = true}}) {
    CheckEquations(Make(o), Rule(o));
  }
}

TEST(LionTest, EverythingElse) {
  CheckEverythingButEquations(Make({.lr = 0.01, .weight_decay = 0.1}));
}

TEST(LionTest, StateBytesAndProblems) {
  Trainee run(Make({}), DType::kF32, {{33, 17}, {5}});
  run.Step(1);
  EXPECT_EQ(StateBytes(*run.optimizer), 4 * (33 * 17 + 5));
  EXPECT_EQ(ProblemsOf(LionOptions{.lr = -1, .betas = {1, -1}, .weight_decay = -1}).size(), 4u);
}

}  // namespace lion_test
}  // namespace apogee::optim
