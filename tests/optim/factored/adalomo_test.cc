// SPDX-License-Identifier: Apache-2.0

// AdaLomo against its equations written out in f64, for every shape; shards, state, known figures.
#include "apogee/optim/factored/adalomo.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/tests/optim/optim_fixture.h"
#include "apogee/tests/optim/shard_fixture.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee::optim {
namespace adalomo_test {

using ::testing::HasSubstr;

struct Reference {
  std::vector<double> w, row, col, v;
  size_t batch = 1, rows = 1, cols = 1;
  bool factored;

  Reference(std::vector<double> values, const Shape& shape) : w(std::move(values)) {
    factored = shape.rank() >= 2;
    if (!factored) {
      v.resize(w.size());
      return;
    }
    rows = static_cast<size_t>(shape[shape.rank() - 2]);
    cols = static_cast<size_t>(shape[shape.rank() - 1]);
    batch = w.size() / rows / cols;
    row.resize(batch * rows);
    col.resize(batch * cols);
  }

  static double Rms(const std::vector<double>& x) {
    return Norm(x) / std::sqrt(static_cast<double>(x.size()));
  }

  void Step(std::vector<double> g, const AdaLomoOptions& o, int step, double clip = 1) {
    const double beta = 1 - std::pow(step, o.decay_rate);
    for (double& x : g) x = clip * std::max(-o.clip_grad_value, std::min(x, o.clip_grad_value));
    std::vector<double> u = g;
    if (factored) {
      for (size_t b = 0; b < batch; ++b) {
        const auto square = [&](size_t r, size_t c) {
          const double x = g[(b * rows + r) * cols + c];
          return x * x + o.eps[0];
        };
        double mean = 0;
        for (size_t r = 0; r < rows; ++r) {
          double sum = 0;
          for (size_t c = 0; c < cols; ++c) sum += square(r, c) / static_cast<double>(cols);
          double& state = row[b * rows + r];
          state = beta * state + (1 - beta) * sum;
          mean += state / static_cast<double>(rows);
        }
        for (size_t c = 0; c < cols; ++c) {
          double sum = 0;
          for (size_t r = 0; r < rows; ++r) sum += square(r, c) / static_cast<double>(rows);
          double& state = col[b * cols + c];
          state = beta * state + (1 - beta) * sum;
        }
        for (size_t r = 0; r < rows; ++r) {
          for (size_t c = 0; c < cols; ++c) {
            u[(b * rows + r) * cols + c] /=
                std::sqrt(row[b * rows + r] / mean) * std::sqrt(col[b * cols + c]);
          }
        }
      }
    } else {
      for (size_t i = 0; i < w.size(); ++i) {
        v[i] = beta * v[i] + (1 - beta) * (g[i] * g[i] + o.eps[0]);
        u[i] /= std::sqrt(v[i]);
      }
    }
    const double denominator = std::max(1.0, Rms(u) / o.clip_threshold);
    const double lr = o.lr * std::max(o.eps[1], Rms(w));
    for (size_t i = 0; i < w.size(); ++i)
      w[i] = w[i] * (1 - lr * o.weight_decay) - lr * u[i] / denominator;
  }
};

void RunEquations(const AdaLomoOptions& o, DType dtype) {
  const ContextPtr context = TestContext({.num_threads = 2});
  std::vector<ParameterPtr> params;
  std::vector<Reference> expected;
  std::vector<std::vector<double>> init;
  std::vector<Shape> shapes = AwkwardShapes();
  shapes.push_back({2, 3, 4, 5});
  shapes.push_back({40, 30, 17});  // cut between matrices
  for (const Shape& shape : shapes) {
    params.push_back(RandomParam(internal::Concat("p", params.size()), shape, dtype, context,
                                 params.size() + 1));
    init.push_back(Values(params.back()->data()));
    expected.emplace_back(init.back(), shape);
  }
  AdaLomo optimizer(params, o);
  for (int step = 1; step <= 12; ++step) {
    optimizer.zero_grad();
    for (size_t p = 0; p < params.size(); ++p) {
      const int at = static_cast<int>(p) + step;
      if (at % 5 == 0) continue;  // absent; the step number goes on
      const uint64_t seed = 1000 * p + static_cast<uint64_t>(step);
      params[p]->set_grad(
          RandomTensor(params[p]->shape(), dtype, context, seed, at % 7 == 0 ? 0 : 1));
      expected[p].Step(Values(params[p]->grad()), o, step);
    }
    optimizer.step();
  }
  for (size_t p = 0; p < params.size(); ++p) {
    EXPECT_LT(UpdateError(Values(params[p]->data()), expected[p].w, init[p]),
              Tolerance(dtype, ErrorKind::kEndToEnd))
        << "shape " << params[p]->shape();
  }
  EXPECT_EQ(optimizer.group_state(0).at("step_num"), std::vector<double>{12});
}

std::vector<AdaLomoOptions> Variants() {
  return {{.lr = 0.01},
          {.lr = 0.03, .weight_decay = 0.1, .clip_grad_value = 0.5},
          {.lr = 0.02, .eps = {1e-6, 2.0}, .clip_threshold = 0.4, .decay_rate = -0.5}};
}
TEST(AdaLomoTest, EquationsInF64) {
  for (const AdaLomoOptions& o : Variants()) RunEquations(o, DType::kF64);
}
TEST(AdaLomoTest, EquationsInF32) {
  for (const AdaLomoOptions& o : Variants()) RunEquations(o, DType::kF32);
}

TEST(AdaLomoTest, KnownRun) {
  const ContextPtr context = TestContext();
  const auto p = std::make_shared<Parameter>(
      "p", Tensor::FromVector(std::vector<double>{1, 2, 3, -1, -2, -3}, {2, 3}, context));
  const Tensor grad =
      Tensor::FromVector(std::vector<double>{.1, -.2, .3, .4, .5, -.6}, {2, 3}, context);
  AdaLomo optimizer({p}, {.lr = 1e-3});
  for (int step = 0; step < 3; ++step) {
    p->set_grad(grad);
    optimizer.step();
  }
  const std::vector<double> expected = {0.99599327,  2.00613544,  2.99261195,
                                        -1.00683391, -2.00654041, -2.99369945};
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(Values(p->data())[i], expected[i], 1e-8);
}

TEST(AdaLomoTest, TwoShardsEqualTheWhole) {
  const AdaLomoOptions o{
      .lr = 0.05, .weight_decay = 0.1, .clip_threshold = 0.7, .clip_grad_value = 2};
  ExpectShardsEqualWhole(
      [&](std::vector<ParameterPtr> params) { return std::make_unique<AdaLomo>(params, o); }, 5);
}

TEST(AdaLomoTest, ResumeHasTheSameBits) {
  const ContextPtr context = TestContext();
  const auto make = [&] {
    return std::vector{RandomParam("a", {4, 3}, DType::kF32, context, 1),
                       RandomParam("b", {5}, DType::kF32, context, 2)};
  };
  std::vector<ParameterPtr> straight = make(), resumed = make();
  AdaLomo whole(straight, {.lr = 0.01});
  auto part = std::make_unique<AdaLomo>(resumed, AdaLomoOptions{.lr = 0.01});
  for (uint64_t step = 0; step < 8; ++step) {
    if (step == 4) {
      auto next = std::make_unique<AdaLomo>(resumed, AdaLomoOptions{});
      ASSERT_TRUE(next->load_state_dict(part->state_dict()).ok());
      part = std::move(next);
    }
    for (size_t p = 0; p < 2; ++p) {
      const Tensor grad = RandomTensor(straight[p]->shape(), DType::kF32, context, 10 * step + p);
      straight[p]->set_grad(grad);
      resumed[p]->set_grad(grad);
    }
    whole.step();
    part->step();
  }
  for (size_t p = 0; p < 2; ++p) EXPECT_EQ(Values(resumed[p]->data()), Values(straight[p]->data()));
}

TEST(AdaLomoTest, StateBytesAreSublinear) {
  const ContextPtr context = TestContext();
  const ParameterPtr p = RandomParam("p", {64, 32}, DType::kF32, context, 1),
                     c = RandomParam("c", {3, 4, 5, 2}, DType::kF32, context, 2);
  AdaLomo optimizer({p, c}, {});
  for (const ParameterPtr& param : {p, c})
    param->set_grad(RandomTensor(param->shape(), DType::kF32, context, 3));
  optimizer.step();
  EXPECT_EQ(context->ledger().live_bytes(MemoryCategory::kOptimizerState),
            4 * (64 + 32) + 4 * 12 * (5 + 2));
}

TEST(AdaLomoTest, ResultDoesNotDependOnThreads) {
  std::vector<std::vector<double>> results;
  for (const int threads : {1, 2, 3}) {
    const ContextPtr context = TestContext({.num_threads = threads});
    const ParameterPtr p = RandomParam("p", {701, 301}, DType::kF32, context, 1);
    AdaLomo optimizer({p}, {.lr = 0.01});
    for (uint64_t step = 0; step < 3; ++step) {
      p->set_grad(RandomTensor(p->shape(), DType::kF32, context, 10 + step));
      optimizer.step();
    }
    results.push_back(Values(p->data()));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(AdaLomoTest, BadOptionsAreListedTogether) {
  const ContextPtr context = TestContext();
  try {
    AdaLomo optimizer(
        {RandomParam("p", {2}, DType::kF32, context, 1)},
        {.lr = -1, .eps = {0, 1e-3}, .clip_threshold = 0, .decay_rate = 0.8, .clip_grad_value = 0});
    FAIL();
  } catch (const Error& error) {
    for (const char* part : {"lr is -1", "eps[0] is 0", "clip_threshold is 0", "decay_rate is 0.8",
                             "clip_grad_value is 0"}) {
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
}

}  // namespace adalomo_test
}  // namespace apogee::optim
