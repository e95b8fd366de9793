// SPDX-License-Identifier: Apache-2.0

// The basis, and the GaLore optimizers against their equations.
#include "apogee/optim/lowrank/galore.h"

#include <gtest/gtest.h>

#include <set>

#include "apogee/optim/lowrank/galore_adamw.h"
#include "apogee/optim/lowrank/galore_adamw8bit.h"
#include "apogee/optim/lowrank/low_rank_basis.h"
#include "apogee/optim/lowrank/low_rank_products.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/matmul.h"
#include "apogee/tests/optim/lowbit/adam8_rule.h"
#include "apogee/tests/optim/optim_fixture.h"
#include "apogee/tests/optim/shard_pair.h"

namespace apogee::optim {
namespace galore_test {

// Random orthonormal columns [n, r].
Tensor RandomBasis(int64_t n, int64_t r, const ContextPtr& context, uint64_t seed) {
  const Tensor x = RandomTensor({n, r}, DType::kF64, context, seed);
  return LeadingBasis(x, {.rank = r, .method = BasisMethod::kExact, .right = false}).left;
}

// U diag(s) V^T.
Tensor WithSpectrum(int64_t m, int64_t n, const std::vector<double>& s, const ContextPtr& context) {
  const auto r = static_cast<int64_t>(s.size());
  const Tensor u = ops::Mul(RandomBasis(m, r, context, 1), Tensor::FromVector(s, {r}, context));
  const Tensor v = RandomBasis(n, r, context, 2);
  return ops::MatMul(u, v, {.b_trans = true});
}

// The sine of the largest angle between row spaces, by the part of b outside a (an upper bound).
double Angle(const Tensor& a, const Tensor& b) {
  const Tensor wide = b.To(DType::kF64);
  const Tensor inside = ops::MatMul(ops::MatMul(wide, a, {.b_trans = true}), a);
  std::vector<double> rest = Values(wide);
  const std::vector<double> part = Values(inside);
  for (size_t i = 0; i < rest.size(); ++i) rest[i] -= part[i];
  return Norm(rest);
}

TEST(LowRankBasisTest, AngleToTheExactSubspace) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>{300, 200}, {200, 300}}) {
    std::vector<double> s;
    for (int i = 0; i < 200; ++i) s.push_back(i < 12 ? 3.0 - 0.1 * i : 1.2 * std::pow(0.99, i));
    const Tensor g = WithSpectrum(m, n, s, context);
    for (const DType dtype : {DType::kF64, DType::kF32}) {
      const BasisResult exact = LeadingBasis(g, {.rank = 12, .method = BasisMethod::kExact});
      const BasisResult found = LeadingBasis(g.To(dtype), {.rank = 12});
      ASSERT_TRUE(exact.ok && found.ok);
      EXPECT_GT(found.iterations, 0);
      EXPECT_LT(Angle(exact.right, found.right), 1e-4);
      EXPECT_LT(
          Angle(exact.left.Transpose(0, 1).Contiguous(), found.left.Transpose(0, 1).Contiguous()),
          1e-4);
    }
  }
}

TEST(LowRankBasisTest, ExactSingularVectorsAndSigns) {
  const ContextPtr context = TestContext();
  for (const Shape& shape : {Shape{1, 9}, Shape{9, 1}, Shape{33, 17}, Shape{17, 33}, Shape{6, 6}}) {
    const Tensor g = RandomTensor(shape, DType::kF64, context, 5);
    const int64_t r = std::min(shape[0], shape[1]);
    const BasisResult b = LeadingBasis(g, {.rank = r});
    ASSERT_TRUE(b.ok);
    const Tensor core =
        ops::MatMul(b.left, ops::MatMul(g, b.right, {.b_trans = true}), {.a_trans = true});
    const std::vector<double> c = Values(core);  // diagonal, descending, positive
    double previous = 1e9;
    for (int64_t i = 0; i < r; ++i) {
      for (int64_t j = 0; j < r; ++j) {
        const double x = c[static_cast<size_t>(i * r + j)];
        if (i != j) {
          ASSERT_NEAR(x, 0, 1e-9);
        } else {
          ASSERT_TRUE(x > 0 && x <= previous + 1e-12);
          previous = x;
        }
      }
      const std::vector<double> row = Values(b.right.Slice(0, i, 1));
      double largest = 0;
      for (const double x : row) {
        if (std::fabs(x) > std::fabs(largest)) largest = x;
      }
      EXPECT_GT(largest, 0);
    }
  }
}

TEST(LowRankBasisTest, RankDeficientZeroAndNonFinite) {
  const ContextPtr context = TestContext();
  const Tensor g = WithSpectrum(30, 20, {2, 1}, context);
  const BasisResult b = LeadingBasis(g, {.rank = 8});
  ASSERT_TRUE(b.ok);
  const std::vector<double> gram = Values(ops::MatMul(b.left, b.left, {.a_trans = true}));
  for (int64_t i = 0; i < 64; ++i)
    EXPECT_NEAR(gram[static_cast<size_t>(i)], i % 9 == 0 ? 1 : 0, 1e-9);
  EXPECT_FALSE(LeadingBasis(Tensor::Zeros({5, 4}, DType::kF32, context), {.rank = 2}).ok);
  const Tensor bad =
      Tensor::Full({5, 4}, DType::kF32, std::numeric_limits<double>::infinity(), context);
  EXPECT_FALSE(LeadingBasis(bad, {.rank = 2}).ok);
}

// One projected AdamW run written out, with the optimizer's own bases.
TEST(GaLoreAdamWTest, FollowsItsEquations) {
  const ContextPtr context = TestContext();
  for (const char* type : {"std", "reverse_std", "left", "right", "full"}) {
    for (const Shape& shape : {Shape{33, 17}, Shape{9, 20}}) {
      GaLoreAdamWOptions o{.lr = 1e-2,
                           .betas = {0.8, 0.97},
                           .weight_decay = 0.2,
                           .rank = 4,
                           .update_proj_gap = 3,
                           .scale = 0.5,
                           .proj_type = type};
      auto param = RandomParam("w", shape, DType::kF64, context, 1);
      GaLoreAdamW optimizer({param}, o);
      Tensor left, right;
      int step = 0;
      std::set<int> refreshes;
      optimizer.rule().set_basis_hook([&](const ParamView&, const NewBasis& basis) {
        refreshes.insert(step);
        (basis.right ? right : left) = basis.vectors;
      });
      std::vector<double> w = Values(param->data()), m, v;
      const std::vector<double> init = w;
      for (int t = 1; t <= 8; ++t) {
        step = t;
        const Tensor g = RandomTensor(shape, DType::kF64, context, 60 + t);
        param->set_grad(g);
        optimizer.step();
        Tensor r = g;
        if (right.defined()) r = ops::MatMul(r, right, {.b_trans = true});
        if (left.defined()) r = ops::MatMul(left, r, {.a_trans = true});
        std::vector<double> u = Values(r);
        m.resize(u.size()), v.resize(u.size());
        const double c1 = 1 - std::pow(o.betas[0], t), c2 = 1 - std::pow(o.betas[1], t);
        for (size_t i = 0; i < u.size(); ++i) {
          m[i] = o.betas[0] * m[i] + (1 - o.betas[0]) * u[i];
          v[i] = o.betas[1] * v[i] + (1 - o.betas[1]) * u[i] * u[i];
          u[i] = o.lr * std::sqrt(c2) / c1 * m[i] / (std::sqrt(v[i]) + o.eps);
        }
        Tensor back = Tensor::FromVector(u, r.shape(), context);
        if (right.defined()) back = ops::MatMul(back, right);
        if (left.defined()) back = ops::MatMul(left, back);
        const std::vector<double> n = Values(back);
        for (size_t i = 0; i < w.size(); ++i)
          w[i] = (w[i] - o.scale * n[i]) * (1 - o.lr * o.weight_decay);
      }
      EXPECT_EQ(refreshes, (std::set<int>{1, 4, 7}));
      EXPECT_LT(UpdateError(Values(param->data()), w, init), 1e-12) << type << " " << shape;
    }
  }
}

TEST(GaLoreAdamWTest, ZeroGradientKeepsTheBasis) {
  const ContextPtr context = TestContext();
  auto param = RandomParam("w", {8, 6}, DType::kF64, context, 1);
  GaLoreAdamW optimizer({param}, {.rank = 3, .update_proj_gap = 1});
  param->set_grad(Tensor::Zeros({8, 6}, DType::kF64, context));
  optimizer.step();  // no basis yet: unit vectors
  const Tensor p = optimizer.views()[0].state("projector");
  EXPECT_EQ(Norm(Values(p)), std::sqrt(3.0));
  param->set_grad(RandomTensor({8, 6}, DType::kF64, context, 2));
  optimizer.step();
  const std::vector<double> basis = Values(p);
  EXPECT_NE(basis[0], 1);
  param->set_grad(Tensor::Zeros({8, 6}, DType::kF64, context));
  optimizer.step();
  EXPECT_EQ(Values(p), basis);
}

// When the new basis spans the same space, rotated moments give what an unrotated run gives.
TEST(GaLoreAdamWTest, RotationFollowsTheBasis) {
  const ContextPtr context = TestContext();
  const auto run = [&](const char* on_refresh, bool flip) {
    auto param = RandomParam("w", {12, 6}, DType::kF64, context, 1);
    GaLoreAdamW optimizer({param},
                          {.lr = 1e-2, .rank = 4, .update_proj_gap = 2, .on_refresh = on_refresh});
    int refreshes = 0;
    optimizer.rule().set_basis_hook([&](const ParamView&, const NewBasis& basis) {
      if (++refreshes > 1 && flip) {
        const Tensor first = basis.vectors.View({basis.vectors.numel()}).Slice(0, 0, 6);
        first.CopyFrom(ops::Scale(first, -1));
      }
    });
    for (uint64_t t = 0; t < 4; ++t) {
      param->set_grad(RandomTensor({12, 6}, DType::kF64, context, 3));
      optimizer.step();
    }
    return Values(param->data());
  };
  const std::vector<double> init = Values(RandomTensor({12, 6}, DType::kF64, context, 1));
  EXPECT_LT(UpdateError(run("rotate", true), run("keep", false), init), 1e-9);
  EXPECT_GT(UpdateError(run("keep", true), run("keep", false), init), 1e-3);
  EXPECT_GT(UpdateError(run("reset", false), run("keep", false), init), 1e-3);
}

// Adam with 8-bit moments on the projected gradient, with the optimizer's own bases.
TEST(GaLoreAdamW8bitTest, FollowsItsEquations) {
  const ContextPtr context = TestContext();
  for (const char* kernel : {"cuda", "cpu"}) {
    for (const char* type : {"std", "left", "full"}) {
      GaLoreAdamW8bitOptions o{.lr = 1e-2,
                               .betas = {0.8, 0.97},
                               .weight_decay = 5,
                               .min_8bit_size = 0,
                               .rank = 20,
                               .update_proj_gap = 3,
                               .scale = 0.5,
                               .proj_type = type};
      o.kernel = kernel;
      const Shape shape{33, 28};  // moments of several blocks
      auto param = RandomParam("w", shape, DType::kF64, context, 1);
      GaLoreAdamW8bit optimizer({param}, o);
      Tensor left, right;
      optimizer.rule().set_basis_hook([&](const ParamView&, const NewBasis& basis) {
        (basis.right ? right : left) = basis.vectors;
      });
      std::vector<double> w = Values(param->data());
      const std::vector<double> init = w;
      Adam8Rule rule(0);
      for (int t = 1; t <= 8; ++t) {
        const Tensor g = RandomTensor(shape, DType::kF64, context, 60 + t);
        param->set_grad(g);
        optimizer.step();
        Tensor r = g;
        if (right.defined()) r = ops::MatMul(r, right, {.b_trans = true});
        if (left.defined()) r = ops::MatMul(left, r, {.a_trans = true});
        rule.m.resize(static_cast<size_t>(r.numel()));
        rule.v.resize(static_cast<size_t>(r.numel()));
        Tensor back = Tensor::FromVector(rule.Step(Values(r), t, o), r.shape(), context);
        if (right.defined()) back = ops::MatMul(back, right);
        if (left.defined()) back = ops::MatMul(left, back);
        const std::vector<double> n = Values(back);
        for (size_t i = 0; i < w.size(); ++i)
          w[i] = (w[i] - o.scale * n[i]) * (1 - o.lr * o.weight_decay);
      }
      EXPECT_LT(UpdateError(Values(param->data()), w, init), 1e-4) << kernel << " " << type;
    }
  }
}

// As RotationFollowsTheBasis, but for the rounding of the codes.
TEST(GaLoreAdamW8bitTest, MomentsFollowTheBasis) {
  const ContextPtr context = TestContext();
  const auto run = [&](const char* on_refresh, bool flip, int64_t bits) {
    auto param = RandomParam("w", {12, 6}, DType::kF64, context, 1);
    GaLoreAdamW8bit optimizer({param}, {.lr = 1e-2,
                                        .bits = bits,
                                        .min_8bit_size = 0,
                                        .rank = 4,
                                        .update_proj_gap = 2,
                                        .on_refresh = on_refresh});
    int refreshes = 0;
    optimizer.rule().set_basis_hook([&](const ParamView&, const NewBasis& basis) {
      if (++refreshes > 1 && flip) {
        const Tensor first = basis.vectors.View({basis.vectors.numel()}).Slice(0, 0, 6);
        first.CopyFrom(ops::Scale(first, -1));
      }
    });
    for (uint64_t t = 0; t < 4; ++t) {
      param->set_grad(RandomTensor({12, 6}, DType::kF64, context, 3));
      optimizer.step();
    }
    return Values(param->data());
  };
  const std::vector<double> init = Values(RandomTensor({12, 6}, DType::kF64, context, 1));
  for (const int64_t bits : {8, 32}) {
    const double rounding = bits == 8 ? 5e-3 : 1e-9;
    const std::vector<double> kept = run("keep", false, bits);
    EXPECT_LT(UpdateError(run("rotate", true, bits), kept, init), rounding);
    EXPECT_GT(UpdateError(run("keep", true, bits), kept, init), 0.1);
    EXPECT_GT(UpdateError(run("reset", false, bits), kept, init), 0.1);
  }
}

TEST(GaLoreTest, ShardsComputeTheSame) {
  for (const char* type : {"std", "reverse_std", "full"}) {
    const GaLoreAdamWOptions o{.lr = 1e-2, .rank = 4, .update_proj_gap = 2, .proj_type = type};
    ExpectShardsEqualWhole<GaLoreAdamW>({33, 17}, 301, o, 5, 1e-10);
  }
  const GaLoreAdamW8bitOptions o{.lr = 1e-2, .min_8bit_size = 0, .rank = 4, .update_proj_gap = 2};
  ExpectShardsEqualWhole<GaLoreAdamW8bit>({33, 17}, 301, o, 3, 1e-4);
  GaLoreAdamW8bitOptions plain = o;
  plain.project = false;
  ExpectShardsEqualWhole<GaLoreAdamW8bit>({33, 17}, 301, plain, 3, 0);
}

TEST(GaLoreTest, StateBytes) {
  const ContextPtr context = TestContext();
  auto param = RandomParam("w", {256, 192}, DType::kF32, context, 1);
  param->set_grad(RandomTensor({256, 192}, DType::kF32, context, 2));
  const auto bytes = [](Optimizer& optimizer) {
    optimizer.step();
    int64_t total = 0;
    for (const NamedState& s : optimizer.views()[0].states()) total += s.value.bytes();
    return total;
  };
  GaLoreAdamW full({param}, {.rank = 16});
  EXPECT_EQ(bytes(full), 4 * 16 * (2 * 256 + 192));
  GaLoreAdamW8bit codes({param}, {.rank = 16});
  EXPECT_EQ(bytes(codes), 2 * 16 * 256 + 8 * 16 + 4 * 16 * 192);
}

TEST(GaLoreTest, GroupsAndProblems) {
  const ContextPtr context = TestContext();
  const std::vector<ParameterPtr> params = {
      RandomParam("a.weight", {20, 30}, DType::kF32, context, 1),
      RandomParam("a.bias", {20}, DType::kF32, context, 2),
      RandomParam("small.weight", {4, 30}, DType::kF32, context, 3)};
  const auto groups = get_galore_param_groups(params, GaLoreAdamWOptions{.rank = 8});
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].params, std::vector<ParameterPtr>{params[0]});
  EXPECT_FALSE(groups[1].options.project);
  EXPECT_TRUE(groups[0].options.project);
  EXPECT_EQ(groups[1].params, (std::vector<ParameterPtr>{params[1], params[2]}));
  try {
    GaLoreAdamW optimizer(params, {.lr = -1, .rank = 8, .update_proj_gap = 0, .proj_type = "up"});
    FAIL();
  } catch (const Error& error) {
    for (const char* part :
         {"lr is -1", "update_proj_gap is 0", "proj_type is \"up\"", "rank 8 is above 4"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(GaLoreAdamW({params[0]}, {.rank = 0}), Error);
}

// What is a matrix and fits is projected, unless its name says bias or LayerNorm.weight.
TEST(GaLoreTest, GroupsByShapeAndName) {
  const ContextPtr context = TestContext();
  const auto make = [&](const char* name, const Shape& shape) {
    return RandomParam(name, shape, DType::kF32, context, 1);
  };
  const std::vector<ParameterPtr> rest = {make("relative_bias", {20, 30}),
                                          make("h.LayerNorm.weight", {20, 30}),
                                          make("conv.weight", {9, 9, 9}), make("scalar", {})};
  const ParameterPtr wide = make("a", {8, 30}), tall = make("b", {30, 8}),
                     small = make("c", {7, 30});
  std::vector<ParameterPtr> all = rest;
  for (const ParameterPtr& p : {wide, small, tall}) all.push_back(p);
  GaLoreAdamW8bitOptions o{.lr = 0.5, .rank = 8, .clamp_rank = true};
  const auto groups = get_galore_param_groups(all, o);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].params, (std::vector<ParameterPtr>{wide, small, tall}));
  EXPECT_EQ(groups[1].params, rest);
  for (const auto& group : groups) EXPECT_EQ(group.options.lr, 0.5);
  o.clamp_rank = false;  // then only what has room for the rank
  EXPECT_EQ(get_galore_param_groups(all, o)[0].params, (std::vector<ParameterPtr>{wide, tall}));
  EXPECT_EQ(get_galore_param_groups(rest, o).size(), 1u);
  EXPECT_EQ(get_galore_param_groups({wide}, o).size(), 1u);
  GaLoreAdamW8bit optimizer(get_galore_param_groups(all, o));
  EXPECT_EQ(optimizer.num_groups(), 2);
}

TEST(GaLoreTest, StateDictRoundTripIsBitwise) {
  const ContextPtr context = TestContext();
  auto a = RandomParam("w", {40, 30}, DType::kF32, context, 1);
  const GaLoreAdamW8bitOptions o{
      .min_8bit_size = 0, .rank = 4, .update_proj_gap = 2, .on_refresh = "rotate"};
  GaLoreAdamW8bit first({a}, o);
  const auto step = [&](GaLoreAdamW8bit& optimizer, const ParameterPtr& p, uint64_t seed) {
    p->set_grad(RandomTensor({40, 30}, DType::kF32, context, seed));
    optimizer.step();
  };
  for (uint64_t t = 0; t < 3; ++t) step(first, a, t);
  auto b = std::make_shared<Parameter>("w", a->data().Clone());
  GaLoreAdamW8bit second({b}, o);
  ASSERT_TRUE(second.load_state_dict(first.state_dict()).ok());
  for (uint64_t t = 3; t < 7; ++t) {
    step(first, a, t);
    step(second, b, t);
  }
  EXPECT_EQ(Values(a->data()), Values(b->data()));
}

}  // namespace galore_test
}  // namespace apogee::optim
