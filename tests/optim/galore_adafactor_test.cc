// SPDX-License-Identifier: Apache-2.0

// GaLoreAdafactor against its equations, written out with the optimizer's own bases.
#include "apogee/optim/lowrank/galore_adafactor.h"

#include <gmock/gmock-matchers.h>

#include <algorithm>
#include <utility>

#include "apogee/tensor/ops/matmul.h"
#include "apogee/tests/optim/factored/factored_rule.h"

namespace apogee::optim {
namespace galore_adafactor_test {

using ::testing::HasSubstr;

MakeOptimizer Make(const GaLoreAdafactorOptions& o) {
  return [o](auto params) { return std::make_unique<GaLoreAdafactor>(params, o); };
}

struct Basis {
  Tensor left, right;  // both undefined: not projected
  bool fresh = false;
};

double Rms(const Vector& x) { return Norm(x) / std::sqrt(static_cast<double>(x.size())); }

// Update number t of one tensor in f64; the projections alone use the library's products.
void Reference(const GaLoreAdafactorOptions& o, const Basis& basis, const Tensor& g, Vector& w,
               Vectors& s, int t) {
  double alpha =
      o.relative_step ? std::min(o.warmup_init ? 1e-6 * t : 1e-2, 1 / std::sqrt(t)) : o.lr;
  if (o.scale_parameter) alpha *= std::max(o.eps[1], Rms(w));
  Tensor r = g;
  if (basis.right.defined()) r = ops::MatMul(r, basis.right, {.b_trans = true});
  if (basis.left.defined()) r = ops::MatMul(basis.left, r, {.a_trans = true});
  const double beta2 = 1 - std::pow(t, o.decay_rate);
  Vector u = Normalize(r.shape(), Values(r), beta2, o.eps[0], s, "sq");
  const double clip = std::max(1.0, Rms(u) / o.clip_threshold);
  Vector& m = s["m"];
  m.resize(u.size());
  for (size_t i = 0; i < u.size(); ++i) {
    u[i] *= alpha / clip;
    if (o.beta1 > 0) u[i] = m[i] = o.beta1 * m[i] + (1 - o.beta1) * u[i];
  }
  Tensor back = Tensor::FromVector(u, r.shape(), g.context());
  if (basis.right.defined()) back = ops::MatMul(back, basis.right);
  if (basis.left.defined()) back = ops::MatMul(basis.left, back);
  const bool projected = basis.left.defined() || basis.right.defined();
  const Vector n = Values(back);
  for (size_t i = 0; i < w.size(); ++i) {
    w[i] -= o.weight_decay * alpha * w[i] + (projected ? o.scale : 1) * n[i];
  }
}

// Two groups, in each of which parameters that are projected and others alternate.
void CheckReference(const GaLoreAdafactorOptions& o, DType dtype, double tolerance) {
  const ContextPtr context = TestContext({.num_threads = 2});
  const std::vector<Shape> shapes = {{37}, {33, 17}, {4, 6, 5}, {9, 20},
                                     {7},  {16, 16}, {},        {12, 1}};
  std::vector<ParameterPtr> params;
  std::vector<Vector> w, init;
  for (const Shape& shape : shapes) {
    params.push_back(RandomParam(internal::Concat("p", params.size()), shape, dtype, context,
                                 params.size() + 1));
    w.push_back(Values(params.back()->data()));
  }
  init = w;
  GaLoreAdafactorOptions other = o;
  other.weight_decay += 0.05;
  other.scale_parameter = !o.scale_parameter;
  const auto middle = params.begin() + 4;
  GaLoreAdafactor optimizer({{{params.begin(), middle}, o}, {{middle, params.end()}, other}});
  std::map<std::string, Basis> bases;
  optimizer.rule().set_basis_hook([&](const ParamView& view, const NewBasis& basis) {
    Basis& kept = bases[view.name()];
    (basis.right ? kept.right : kept.left) = basis.vectors.To(DType::kF64);
    kept.fresh = true;
  });
  std::vector<Vectors> states(w.size());
  std::vector<int> counts(w.size());
  for (int step = 1; step <= 8; ++step) {
    optimizer.zero_grad();
    for (size_t p = 0; p < w.size(); ++p) {
      if ((step + static_cast<int>(p)) % 5 == 0) continue;  // absent
      params[p]->set_grad(RandomTensor(shapes[p], dtype, context, 60 * p + step));
    }
    optimizer.step();
    for (size_t p = 0; p < w.size(); ++p) {
      if (!params[p]->has_grad()) continue;
      Basis& basis = bases[params[p]->name()];
      EXPECT_EQ(std::exchange(basis.fresh, false),
                shapes[p].rank() == 2 && counts[p] % o.update_proj_gap == 0);
      Reference(p < 4 ? o : other, basis, params[p]->grad().To(DType::kF64), w[p], states[p],
                ++counts[p]);
    }
  }
  for (size_t p = 0; p < w.size(); ++p) {
    EXPECT_EQ(
        bases.at(params[p]->name()).left.defined() || bases.at(params[p]->name()).right.defined(),
        shapes[p].rank() == 2);
    EXPECT_LT(UpdateError(Values(params[p]->data()), w[p], init[p]), tolerance)
        << o.proj_type << " " << shapes[p];
  }
}

TEST(GaLoreAdafactorTest, FollowsItsEquations) {
  for (const char* type : {"std", "reverse_std", "left", "right", "full"}) {
    const GaLoreAdafactorOptions relative{.weight_decay = 0.3,
                                          .rank = 4,
                                          .update_proj_gap = 3,
                                          .scale = 0.5,
                                          .proj_type = type,
                                          .clamp_rank = true};
    GaLoreAdafactorOptions momentum = relative;
    momentum.lr = 0.02;
    momentum.relative_step = false;
    momentum.beta1 = 0.8;
    momentum.clip_threshold = 0.4;
    momentum.decay_rate = -0.6;
    momentum.eps = {1e-4, 3};  // both large enough to act
    for (const GaLoreAdafactorOptions& o : {relative, momentum}) {
      CheckReference(o, DType::kF64, 1e-11);
      CheckReference(o, DType::kF32, 1e-4);
    }
  }
  CheckReference({.warmup_init = true, .rank = 4, .clamp_rank = true}, DType::kF64, 1e-9);
}

TEST(GaLoreAdafactorTest, EverythingElse) {
  CheckEverythingButEquations(
      Make({.weight_decay = 0.1, .rank = 3, .update_proj_gap = 2, .clamp_rank = true}));
  CheckEverythingButEquations(Make({.lr = 0.01,
                                    .beta1 = 0.9,
                                    .relative_step = false,
                                    .rank = 4,
                                    .update_proj_gap = 2,
                                    .proj_type = "full",
                                    .clamp_rank = true,
                                    .on_refresh = "rotate"}));
}

// A new basis of the same space, other vectors: with rotated states that makes no difference.
TEST(GaLoreAdafactorTest, StatesFollowTheBasis) {
  const ContextPtr context = TestContext();
  for (const char* type : {"left", "right", "full"}) {
    const auto run = [&](const char* on_refresh, bool reorder) {
      auto param = RandomParam("w", {12, 6}, DType::kF64, context, 1);
      GaLoreAdafactor optimizer({param}, {.lr = 1e-2,
                                          .beta1 = 0.7,
                                          .relative_step = false,
                                          .rank = 4,
                                          .update_proj_gap = 2,
                                          .proj_type = type,
                                          .on_refresh = on_refresh});
      std::map<bool, int> refreshes;
      optimizer.rule().set_basis_hook([&](const ParamView&, const NewBasis& basis) {
        if (++refreshes[basis.right] < 2 || !reorder) return;
        Vector values = Values(basis.vectors);
        const auto at = [&](size_t k, size_t i) -> double& {
          return values[basis.right ? k * 6 + i : i * 4 + k];
        };
        for (size_t i = 0; i < (basis.right ? 6u : 12u); ++i) {
          std::swap(at(0, i), at(3, i));
          at(1, i) *= -1;
        }
        basis.vectors.CopyFrom(Tensor::FromVector(values, basis.vectors.shape(), context));
      });
      for (int t = 0; t < 4; ++t) {
        Vector g = RandomValues(72, 3);  // one basis; the sizes change, so that averages matter
        for (double& x : g) x *= 1 + t % 3;
        param->set_grad(Tensor::FromVector(g, {12, 6}, context));
        optimizer.step();
      }
      return Values(param->data());
    };
    const Vector init = Values(RandomTensor({12, 6}, DType::kF64, context, 1));
    EXPECT_LT(UpdateError(run("rotate", true), run("keep", false), init), 1e-9) << type;
    EXPECT_GT(UpdateError(run("keep", true), run("keep", false), init), 1e-3) << type;
    EXPECT_GT(UpdateError(run("reset", false), run("keep", false), init), 1e-3) << type;
  }
}

TEST(GaLoreAdafactorTest, StateBytes) {
  Trainee run(Make({.rank = 16}), DType::kF32, {{256, 192}});
  run.Step(1);
  EXPECT_EQ(StateBytes(*run.optimizer), 4 * 16 * 192 + 4 * (256 + 16));
  Trainee momentum(Make({.beta1 = 0.9, .rank = 16}), DType::kF32, {{256, 192}});
  momentum.Step(1);
  EXPECT_EQ(StateBytes(*momentum.optimizer), 4 * 16 * (192 + 256) + 4 * (256 + 16));
}

TEST(GaLoreAdafactorTest, Problems) {
  EXPECT_TRUE(ProblemsOf(GaLoreAdafactorOptions{}).empty());
  const ContextPtr context = TestContext();
  const ParameterPtr small = RandomParam("small", {4, 30}, DType::kF32, context, 1);
  try {
    GaLoreAdafactor optimizer({small}, {.lr = 0.1,
                                        .eps = {0, -1},
                                        .clip_threshold = 0,
                                        .decay_rate = 1,
                                        .beta1 = 1,
                                        .weight_decay = -1,
                                        .rank = 8,
                                        .update_proj_gap = 0,
                                        .scale = -1,
                                        .proj_type = "up",
                                        .svd = "qr",
                                        .on_refresh = "drop"});
    FAIL();
  } catch (const Error& error) {
    for (const char* part :
         {"galore_adafactor", "set relative_step=false", "eps[0] is 0", "eps[1] is -1",
          "clip_threshold is 0", "decay_rate is 1", "beta1 is 1", "weight_decay is -1",
          "update_proj_gap is 0", "scale is -1", "proj_type is \"up\"", "svd is \"qr\"",
          "on_refresh is \"drop\"", "rank 8 is above 4"}) {
      EXPECT_THAT(std::string(error.what()), HasSubstr(part));
    }
  }
  EXPECT_THROW(GaLoreAdafactor({small}, {.rank = 0}), Error);
}

// A schedule may not silently be without effect.
TEST(GaLoreAdafactorTest, RelativeStepRefusesASchedule) {
  Trainee run(Make({.rank = 2}), DType::kF32, {{3, 4}});
  run.optimizer->set_lr(0, run.optimizer->lr(0));
  EXPECT_THROW(run.optimizer->set_lr(0, 0.1), Error);
  Trainee given(Make({.lr = 1, .relative_step = false, .rank = 2}), DType::kF32, {{3, 4}});
  given.optimizer->set_lr(0, 0.1);
  EXPECT_EQ(given.optimizer->lr(0), 0.1);
}

}  // namespace galore_adafactor_test
}  // namespace apogee::optim
