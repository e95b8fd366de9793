// SPDX-License-Identifier: Apache-2.0

// Every element-wise optimizer against its equations written out per element in f64, with random
// gradients, many steps, awkward shapes, and gradients that are absent or zero now and then.
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "apogee/optim/adam/adam.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/tests/optim/optim_fixture.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee::optim {
namespace update_test {

// Advances one weight; s is its state, t its step count, from 1.
using Rule = std::function<void(double& w, double g, std::array<double, 3>& s, int t)>;
using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(std::vector<ParameterPtr>)>;

struct Case {
  std::string name;
  MakeOptimizer make;
  Rule rule;
};

Rule SgdRule(SgdOptions o) {
  return [o](double& w, double g, std::array<double, 3>& s, int t) {
    if (o.maximize) g = -g;
    g += o.weight_decay * w;
    if (o.momentum != 0) {
      s[0] = t == 1 ? g : o.momentum * s[0] + (1 - o.dampening) * g;
      g = o.nesterov ? g + o.momentum * s[0] : s[0];
    }
    w -= o.lr * g;
  };
}

template <typename Options>
Rule AdamRule(Options o, bool decoupled, bool hf) {
  return [=](double& w, double g, std::array<double, 3>& s, int t) {
    if (o.maximize) g = -g;
    if (!decoupled) g += o.weight_decay * w;
    if (decoupled && !hf) w *= 1 - o.lr * o.weight_decay;
    s[0] = o.betas[0] * s[0] + (1 - o.betas[0]) * g;
    s[1] = o.betas[1] * s[1] + (1 - o.betas[1]) * g * g;
    s[2] = std::max(s[2], s[1]);
    const double v = o.amsgrad ? s[2] : s[1];
    const double c1 = o.correct_bias ? 1 - std::pow(o.betas[0], t) : 1;
    const double c2 = o.correct_bias ? 1 - std::pow(o.betas[1], t) : 1;
    if (hf) {
      w -= o.lr * std::sqrt(c2) / c1 * s[0] / (std::sqrt(v) + o.eps);
      w -= o.lr * o.weight_decay * w;
    } else {
      w -= o.lr * (s[0] / c1) / (std::sqrt(v / c2) + o.eps);
    }
  };
}

Case Make(std::string name, SgdOptions o) {
  return {std::move(name), [o](auto params) { return std::make_unique<Sgd>(params, o); },
          SgdRule(o)};
}
Case Make(std::string name, AdamOptions o) {
  return {std::move(name), [o](auto params) { return std::make_unique<Adam>(params, o); },
          AdamRule(o, false, false)};
}
Case Make(std::string name, AdamWOptions o) {
  return {std::move(name), [o](auto params) { return std::make_unique<AdamW>(params, o); },
          AdamRule(o, true, o.hf_style)};
}

std::vector<Case> Cases() {
  return {
      Make("sgd", SgdOptions{.lr = 0.1}),
      Make("sgd_decay_maximize", SgdOptions{.lr = 0.1, .weight_decay = 0.05, .maximize = true}),
      Make("sgd_momentum", SgdOptions{.lr = 0.05, .momentum = 0.9}),
      Make("sgd_dampening",
           SgdOptions{.lr = 0.05, .momentum = 0.8, .dampening = 0.3, .weight_decay = 0.01}),
      Make("sgd_nesterov",
           SgdOptions{.lr = 0.03, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true}),
      Make("adam", AdamOptions{.lr = 0.01}),
      Make("adam_decay", AdamOptions{.lr = 0.01, .betas = {0.8, 0.95}, .weight_decay = 0.1}),
      Make("adam_amsgrad",
           AdamOptions{.lr = 0.01, .betas = {0.9, 0.9}, .eps = 1e-4, .amsgrad = true}),
      Make("adam_maximize", AdamOptions{.lr = 0.01, .weight_decay = 0.1, .maximize = true}),
      Make("adam_uncorrected", AdamOptions{.lr = 0.01, .correct_bias = false}),
      Make("adamw", AdamWOptions{.lr = 0.01, .weight_decay = 0.1}),
      Make("adamw_no_decay", AdamWOptions{.lr = 0.01, .eps = 1e-3, .weight_decay = 0}),
      Make("adamw_amsgrad",
           AdamWOptions{.lr = 0.01, .betas = {0.9, 0.9}, .weight_decay = 0.1, .amsgrad = true}),
      Make("adamw_hf",
           AdamWOptions{.lr = 0.01, .eps = 1e-3, .weight_decay = 0.1, .hf_style = true}),
      Make("adamw_hf_uncorrected",
           AdamWOptions{.lr = 0.01, .weight_decay = 0.1, .correct_bias = false, .hf_style = true}),
  };
}

enum class Grad { kRandom, kZero, kAbsent };
Grad GradAt(size_t param, int step) {
  const int at = static_cast<int>(param) + step;
  return at % 5 == 0 ? Grad::kAbsent : at % 7 == 0 ? Grad::kZero : Grad::kRandom;
}

void RunCase(const Case& c, DType dtype) {
  const ContextPtr context = TestContext({.num_threads = 2});
  std::vector<ParameterPtr> params;
  std::vector<std::vector<double>> init, expected;
  std::vector<std::vector<std::array<double, 3>>> states;
  std::vector<int> counts;
  for (const Shape& shape : AwkwardShapes()) {
    params.push_back(
        RandomParam(internal::Concat("p", params.size()), shape, dtype, context, params.size()));
    init.push_back(Values(params.back()->data()));
    expected.push_back(init.back());
    states.emplace_back(init.back().size(), std::array<double, 3>{});
    counts.push_back(0);
  }
  const std::unique_ptr<Optimizer> optimizer = c.make(params);
  for (int step = 1; step <= 25; ++step) {
    optimizer->zero_grad();
    for (size_t p = 0; p < params.size(); ++p) {
      const Grad kind = GradAt(p, step);
      if (kind == Grad::kAbsent) continue;
      const uint64_t seed = 1000 * p + static_cast<uint64_t>(step);
      const Tensor grad =
          RandomTensor(params[p]->shape(), dtype, context, seed, kind == Grad::kZero ? 0 : 1);
      const std::vector<double> g = Values(grad);
      params[p]->set_grad(grad);
      ++counts[p];
      for (size_t i = 0; i < g.size(); ++i) c.rule(expected[p][i], g[i], states[p][i], counts[p]);
    }
    optimizer->step();
  }
  for (size_t p = 0; p < params.size(); ++p) {
    EXPECT_LT(UpdateError(Values(params[p]->data()), expected[p], init[p]),
              Tolerance(dtype, ErrorKind::kEndToEnd))
        << c.name << ", shape " << params[p]->shape();
    EXPECT_EQ(optimizer->views()[p].step(), counts[p]);
  }
}

TEST(UpdateTest, EquationsInF64) {
  for (const Case& c : Cases()) RunCase(c, DType::kF64);
}

TEST(UpdateTest, EquationsInF32) {
  for (const Case& c : Cases()) RunCase(c, DType::kF32);
}

TEST(UpdateTest, ResultDoesNotDependOnThreads) {
  std::vector<std::vector<double>> results;
  for (const int threads : {1, 2, 3}) {
    const ContextPtr context = TestContext({.num_threads = threads});
    const ParameterPtr p = RandomParam("p", {701, 301}, DType::kF32, context, 1);
    AdamW optimizer({p}, {.lr = 0.01});
    optimizer.set_step_options({.max_norm = 1});
    for (uint64_t step = 0; step < 3; ++step) {
      p->set_grad(RandomTensor(p->shape(), DType::kF32, context, 10 + step));
      optimizer.step();
    }
    results.push_back(Values(p->data()));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(UpdateTest, GroupsHaveTheirOwnOptions) {
  const ContextPtr context = TestContext();
  const ParameterPtr a = RandomParam("a", {5}, DType::kF64, context, 1);
  const ParameterPtr b = RandomParam("b", {5}, DType::kF64, context, 1);
  Sgd optimizer({{.params = {a}, .options = {.lr = 0.1}}, {.params = {b}, .options = {.lr = 0.3}}});
  const std::vector<double> before = Values(a->data());
  for (const ParameterPtr& p : {a, b}) p->set_grad(Tensor::Full({5}, DType::kF64, 1, context));
  optimizer.step();
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_DOUBLE_EQ(Values(a->data())[i], before[i] - 0.1);
    EXPECT_DOUBLE_EQ(Values(b->data())[i], before[i] - 0.3);
  }
  optimizer.set_lr(1, 0.5);
  EXPECT_EQ(optimizer.lr(1), 0.5);
  EXPECT_EQ(optimizer.options(0).lr, 0.1);
}

}  // namespace update_test
}  // namespace apogee::optim
