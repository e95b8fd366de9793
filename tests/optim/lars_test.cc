// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/momentum/lars.h"

#include "apogee/tests/optim/layerwise_checks.h"

namespace apogee::optim {
namespace lars_test {

MakeOptimizer Make(const LarsOptions& o) {
  return [o](auto params) { return std::make_unique<Lars>(params, o); };
}

TensorRule Rule(LarsOptions o) {
  return [o](const Shape& shape, Vector& w, const Vector& g, Vectors& s, int) {
    Vector& buf = s["buf"];
    buf.resize(w.size());
    double ratio = 1;
    if (!(o.matrices_only && shape.rank() < 2) && Norm(w) > 0 && Norm(g) > 0) {
      ratio = o.trust_coefficient * Norm(w) / (Norm(g) + o.weight_decay * Norm(w) + o.eps);
    }
    for (size_t i = 0; i < w.size(); ++i) {
      const double d = ratio * (g[i] + o.weight_decay * w[i]);
      buf[i] = o.momentum * buf[i] + d;
      w[i] -= o.lr * (o.nesterov ? d + o.momentum * buf[i] : buf[i]);
    }
  };
}

TEST(LarsTest, Equations) {
  for (const LarsOptions& o :
       {LarsOptions{.trust_coefficient = 0.02}, LarsOptions{.momentum = 0, .weight_decay = 0.1},
        LarsOptions{.lr = 3, .weight_decay = 0.1, .eps = 0.5, .nesterov = true},
        LarsOptions{.lr = 0.1, .matrices_only = true}}) {
    CheckEquations(Make(o), Rule(o));
  }
}

TEST(LarsTest, EverythingElse) {
  CheckEverythingButEquations(Make({.weight_decay = 0.1, .trust_coefficient = 0.02}));
  // Without eps the ratio is the same when both norms are wrong by one factor.
  CheckSharded(Make({.trust_coefficient = 0.02, .eps = 3}), /*replicas=*/true);
}

TEST(LarsTest, StateBytesAndProblems) {
  Trainee with(Make({}), DType::kF32, {{33, 17}, {5}}),
      without(Make({.momentum = 0}), DType::kF32, {{33, 17}, {5}});
  with.Step(1);
  without.Step(1);
  EXPECT_EQ(StateBytes(*with.optimizer), 4 * (33 * 17 + 5));
  EXPECT_EQ(StateBytes(*without.optimizer), 0);
  EXPECT_EQ(
      ProblemsOf(LarsOptions{.lr = -1, .momentum = 0, .trust_coefficient = 0, .nesterov = true})
          .size(),
      3u);
}

}  // namespace lars_test
}  // namespace apogee::optim
