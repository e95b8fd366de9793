// SPDX-License-Identifier: Apache-2.0

// ScaledAdam against its equations written out in f64, its clipping, diagnostics, shards, state.
#include "apogee/optim/adam/scaled_adam.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "apogee/tests/optim/optim_fixture.h"
#include "apogee/tests/optim/shard_fixture.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee::optim {
namespace scaled_adam_test {

using ::testing::HasSubstr;

// One parameter, as the header's equations have it.
struct Reference {
  std::vector<double> w, delta, v;
  double rms = 0, s = 0;
  std::vector<double> window;
  int t = 0;

  explicit Reference(std::vector<double> values)
      : w(std::move(values)), delta(w.size()), v(w.size()) {}

  double Rms() const { return Norm(w) / std::sqrt(static_cast<double>(w.size())); }

  // `clip` multiplies what the update sees, `size_clip` what the size update sees.
  void Step(const std::vector<double>& grad, const ScaledAdamOptions& o, double clip = 1,
            double size_clip = 1) {
    const bool scalar = w.size() == 1, old = o.icefall_2023;
    const auto period = static_cast<int>(o.size_update_period);
    const bool last = t % period == period - 1;
    double change = 0;
    if (!scalar) {
      double dot = 0;
      for (size_t i = 0; i < w.size(); ++i) dot += w[i] * grad[i] * size_clip;
      if (t % period == 0) window.clear();
      window.push_back(dot);
      if (t == 0 || last) rms = Rms();
      if (last && t > 0) {
        double sum = 0, squares = 0;
        for (const double x : window) {
          sum += x;
          squares += x * x;
        }
        const double b = std::pow(o.betas[1], period), k = (t + 1) / period;
        s = b * s + (1 - b) * squares / period;
        const double lr = o.lr * o.scalar_lr_scale;
        change = -lr * std::sqrt(1 - std::pow(b, k)) * sum / (std::sqrt(s) + o.eps);
        if (rms < o.param_min_rms) change = 0;
        if (old) {
          if (rms > o.param_max_rms) change = -lr * period;
        } else {
          change = std::min({std::max(change, -0.1), 0.1, (o.param_max_rms - rms) / rms});
        }
      }
    }
    const double c = 1 - std::pow(o.betas[1], t + 1);
    const double correction = c < 0.99 || (old && scalar) ? c : 1;
    const double lr = scalar ? o.lr * o.scalar_lr_scale : o.lr * std::max(rms, o.param_min_rms);
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = clip * grad[i];
      v[i] = o.betas[1] * v[i] + (1 - o.betas[1]) * g * g;
      const double step = -lr * g / (std::sqrt(v[i] / correction) + o.eps) + change * w[i];
      delta[i] = o.betas[0] * delta[i] + (1 - o.betas[0]) * step;
      const auto clamp = [&] { w[i] = std::clamp(w[i], -o.scalar_max, o.scalar_max); };
      if (scalar && old) clamp();
      w[i] += delta[i];
      if (scalar && !old) clamp();
    }
    ++t;
  }
};

enum class Grad { kRandom, kZero, kAbsent };
Grad GradAt(size_t param, int step) {
  const int at = static_cast<int>(param) + step;
  return at % 6 == 0 ? Grad::kAbsent : at % 7 == 0 ? Grad::kZero : Grad::kRandom;
}

void RunEquations(const ScaledAdamOptions& o, DType dtype) {
  const ContextPtr context = TestContext({.num_threads = 2});
  std::vector<ParameterPtr> params;
  std::vector<Reference> expected;
  std::vector<std::vector<double>> init;
  std::vector<Shape> shapes = AwkwardShapes();
  shapes.push_back({2, 3, 4, 5});
  for (const Shape& shape : shapes) {
    params.push_back(RandomParam(internal::Concat("p", params.size()), shape, dtype, context,
                                 params.size() + 1));
    init.push_back(Values(params.back()->data()));
    expected.emplace_back(init.back());
  }
  ScaledAdam optimizer(params, o);
  for (int step = 1; step <= 30; ++step) {
    optimizer.zero_grad();
    for (size_t p = 0; p < params.size(); ++p) {
      const Grad kind = GradAt(p, step);
      const uint64_t seed = 1000 * p + static_cast<uint64_t>(step);
      const Tensor grad =
          RandomTensor(params[p]->shape(), dtype, context, seed, kind == Grad::kRandom ? 1 : 0);
      if (kind != Grad::kAbsent) params[p]->set_grad(grad);
      if (kind != Grad::kAbsent || o.none_as_zero) expected[p].Step(Values(grad), o);
    }
    optimizer.step();
  }
  for (size_t p = 0; p < params.size(); ++p) {
    EXPECT_LT(UpdateError(Values(params[p]->data()), expected[p].w, init[p]),
              Tolerance(dtype, ErrorKind::kEndToEnd))
        << "shape " << params[p]->shape();
    EXPECT_EQ(optimizer.views()[p].step(), expected[p].t);
  }
}

std::vector<ScaledAdamOptions> Variants() {
  ScaledAdamOptions tight{.lr = 0.1,
                          .scalar_lr_scale = 0.5,
                          .param_min_rms = 0.05,
                          .param_max_rms = 0.7,
                          .scalar_max = 0.6,
                          .size_update_period = 3};
  ScaledAdamOptions old = tight;
  old.icefall_2023 = old.none_as_zero = true;
  return {{.lr = 0.05},
          {.lr = 0.05, .none_as_zero = true},
          {.lr = 0.05, .betas = {0.8, 0.7}, .eps = 1e-3, .size_update_period = 1},
          tight,
          old};
}

TEST(ScaledAdamTest, EquationsInF64) {
  for (const ScaledAdamOptions& o : Variants()) RunEquations(o, DType::kF64);
}
TEST(ScaledAdamTest, EquationsInF32) {
  for (const ScaledAdamOptions& o : Variants()) RunEquations(o, DType::kF32);
}

// The figures of a run by hand: p = [1, -2], gradients in a cycle of four.
TEST(ScaledAdamTest, KnownRun) {
  const ContextPtr context = TestContext();
  const double expected[8][2] = {{.99525658, -1.99525658}, {.98624409, -1.98624409},
                                 {.97928882, -1.98344159}, {.97006981, -1.98381311},
                                 {.9558921, -1.97948877},  {.93752512, -1.97093232},
                                 {.9222062, -1.96865765},  {.90553847, -1.96946958}};
  const std::vector<double> cycle[4] = {{.5, -.25}, {.5, -.25}, {-.1, .3}, {.2, .2}};
  for (const bool old : {false, true}) {
    const auto p = std::make_shared<Parameter>(
        "p", Tensor::FromVector(std::vector<double>{1, -2}, {2}, context));
    ScaledAdam optimizer({p}, {.icefall_2023 = old});
    for (int step = 0; step < 8; ++step) {
      p->set_grad(Tensor::FromVector(cycle[step % 4], {2}, context));
      optimizer.step();
      for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(Values(p->data())[i], expected[step][i], 5e-9);
    }
  }
}

// A spike in the gradients shows whether the clipped gradient reaches the whole update: a constant
// factor cancels in Adam. The reference clips with the factor computed here from the norms.
class ClippingTest : public ::testing::TestWithParam<bool> {};

TEST_P(ClippingTest, SpikesAreClippedAgainstTheMedian) {
  const bool old = GetParam();
  const ContextPtr context = TestContext();
  const ScaledAdamOptions o{
      .clipping_scale = 1.5, .clipping_update_period = 12, .icefall_2023 = old};
  const std::vector<Shape> shapes = {{4, 5}, {}, {7}};
  std::vector<ParameterPtr> params;
  std::vector<Reference> expected;
  for (const Shape& shape : shapes) {
    params.push_back(RandomParam(internal::Concat("p", params.size()), shape, DType::kF64, context,
                                 params.size() + 1));
    expected.emplace_back(Values(params.back()->data()));
  }
  ScaledAdam optimizer(params, o);
  std::vector<double> norms(12);
  double threshold = INFINITY;
  int num_clipped = 0;
  for (int step = 0; step < 40; ++step) {
    std::vector<std::vector<double>> grads;
    double squares = 0;
    for (size_t p = 0; p < params.size(); ++p) {
      const double size = (step == 11 || step == 17 || step == 30) && p == 2 ? 50 : 1;
      const Tensor grad = RandomTensor(shapes[p], DType::kF64, context,
                                       100 * static_cast<uint64_t>(step) + p, size);
      params[p]->set_grad(grad);
      grads.push_back(Values(grad));
      const double weight = p != 1 ? (step == 0 ? expected[p].Rms() : expected[p].rms)
                            : old  ? 1
                                   : o.scalar_lr_scale;
      squares += weight * weight * Norm(grads[p]) * Norm(grads[p]);
    }
    double clip = 1;
    const double norm = std::sqrt(squares);
    if (step > 0) {
      norms[static_cast<size_t>(step % 12)] = norm;
      std::vector<double> sorted = norms;
      std::ranges::sort(sorted);
      if (step % 12 == 0) threshold = 1.5 * sorted[6];
      if (step == 10 && !old)
        threshold = 2 * 1.5 * sorted[2 + 4];  // ten norms behind two empty slots
      clip = std::min(1.0, threshold / norm);
    }
    num_clipped += clip < 1;
    optimizer.step();
    EXPECT_NEAR(optimizer.Clipping(0).factor, clip, 1e-12) << "step " << step;
    EXPECT_NEAR(optimizer.Clipping(0).norm, norm, 1e-12 * norm);
    if (step == 30) {
      EXPECT_EQ(optimizer.Clipping(0).dominant.at(0).name, "p2");
      EXPECT_GT(optimizer.Clipping(0).dominant.at(0).share, 0.9);
    }
    for (size_t p = 0; p < params.size(); ++p) expected[p].Step(grads[p], o, old ? 1 : clip, clip);
    for (size_t p = 0; p < params.size(); ++p) {
      const std::vector<double> w = Values(params[p]->data());
      for (size_t i = 0; i < w.size(); ++i) EXPECT_NEAR(w[i], expected[p].w[i], 1e-11);
    }
  }
  EXPECT_GE(num_clipped, 2);
  const ClippingReport report = optimizer.Clipping(0, 3);
  EXPECT_NEAR(report.threshold, threshold, 1e-12);
  EXPECT_NEAR(report.quartiles[2] * 1.5, threshold, 1e-12);
  EXPECT_TRUE(std::ranges::is_sorted(report.quartiles));
  EXPECT_GT(report.percent_clipped, 0);
  double shares = 0;
  for (const GradientShare& share : report.dominant) shares += share.share;
  EXPECT_NEAR(shares, 1, 1e-12);
}
INSTANTIATE_TEST_SUITE_P(Versions, ClippingTest, ::testing::Bool());

TEST(ScaledAdamTest, GroupsClipOnTheirOwn) {
  const ContextPtr context = TestContext();
  const ParameterPtr a = RandomParam("a", {5}, DType::kF64, context, 1),
                     b = RandomParam("b", {5}, DType::kF64, context, 2);
  ScaledAdam optimizer(
      {{.params = {a}, .options = {.clipping_scale = 1, .clipping_update_period = 4}},
       {.params = {b}}});
  for (uint64_t step = 0; step < 9; ++step) {
    a->set_grad(RandomTensor({5}, DType::kF64, context, step, step == 5 ? 100 : 1));
    b->set_grad(RandomTensor({5}, DType::kF64, context, step, step == 5 ? 100 : 1));
    optimizer.step();
    if (step == 5) {
      EXPECT_LT(optimizer.Clipping(0).factor, 0.1);
    }
    EXPECT_EQ(optimizer.Clipping(1).factor, 1);
  }
  EXPECT_TRUE(optimizer.group_state(1).empty());
}

// The gradient is dropped, neither the diagnostics nor the median suffer, and the next steps go on.
TEST(ScaledAdamTest, NonFiniteNormUnderProceed) {
  const ContextPtr context = TestContext();
  for (const double bad : {static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    const ParameterPtr p = RandomParam("p", {6}, DType::kF64, context, 1),
                       q = RandomParam("q", {6}, DType::kF64, context, 2);
    ScaledAdam optimizer({p, q}, {.clipping_scale = 2, .clipping_update_period = 4});
    optimizer.set_step_options({.nonfinite = NonFinitePolicy::kProceed});
    for (uint64_t step = 0; step < 12; ++step) {
      p->set_grad(RandomTensor({6}, DType::kF64, context, step));
      q->set_grad(RandomTensor({6}, DType::kF64, context, 100 + step));
      if (step == 6) q->set_grad(Tensor::Full({6}, DType::kF64, bad, context));
      optimizer.step();
      if (step == 6) {
        EXPECT_EQ(optimizer.Clipping(0).factor, 0);
        EXPECT_EQ(optimizer.Clipping(0).dominant.at(0).name, "q");
        EXPECT_EQ(optimizer.Clipping(0).dominant.at(0).share, 1);
      }
    }
    EXPECT_TRUE(std::isfinite(Norm(Values(p->data()))) && std::isfinite(Norm(Values(q->data()))));
    EXPECT_TRUE(std::isfinite(optimizer.Clipping(0).threshold));
  }
}

// Absent and frozen parameters do not move by default; the preset moves them, as the reference
// does.
TEST(ScaledAdamTest, AbsentIsLeftAloneUnlessAsked) {
  const ContextPtr context = TestContext();
  for (const bool as_zero : {false, true}) {
    const ParameterPtr p =
        std::make_shared<Parameter>("p", Tensor::Full({8}, DType::kF64, 4.0, context));
    const ParameterPtr other = RandomParam("o", {3}, DType::kF64, context, 2);
    const ParameterPtr frozen =
        std::make_shared<Parameter>("f", Tensor::Full({8}, DType::kF64, 4.0, context));
    frozen->set_requires_grad(false);
    ScaledAdam optimizer({p, other, frozen}, {.none_as_zero = as_zero});
    for (int step = 0; step < 4; ++step) {
      other->set_grad(RandomTensor({3}, DType::kF64, context, static_cast<uint64_t>(step)));
      optimizer.step();
    }
    // Above param_max_rms = 3 the size goes down by (3 - 4) / 4, of which momentum lets a tenth
    // through.
    EXPECT_NEAR(Values(p->data())[0], as_zero ? 3.9 : 4, 1e-12);
    EXPECT_EQ(Values(frozen->data()), std::vector<double>(8, 4.0));
    EXPECT_EQ(optimizer.views()[0].step(), as_zero ? 4 : 0);
  }
}

// A scalar at its limit does not exceed it; the old version may.
TEST(ScaledAdamTest, ScalarLimit) {
  const ContextPtr context = TestContext();
  for (const bool old : {false, true}) {
    const auto p = std::make_shared<Parameter>("p", Tensor::Full({}, DType::kF64, 10.0, context));
    ScaledAdam optimizer({p}, {.icefall_2023 = old});
    for (int step = 0; step < 5; ++step) {
      p->set_grad(Tensor::Full({}, DType::kF64, -1, context));
      optimizer.step();
    }
    EXPECT_EQ(Values(p->data())[0] > 10, old);
  }
}

TEST(ScaledAdamTest, TwoShardsEqualTheWhole) {
  const ScaledAdamOptions o{
      .lr = 0.05, .clipping_scale = 1.1, .size_update_period = 2, .clipping_update_period = 4};
  ExpectShardsEqualWhole(
      [&](std::vector<ParameterPtr> params) { return std::make_unique<ScaledAdam>(params, o); }, 7);
}

TEST(ScaledAdamTest, ResumeHasTheSameBits) {
  const ContextPtr context = TestContext();
  const ScaledAdamOptions o{
      .clipping_scale = 1.2, .size_update_period = 3, .clipping_update_period = 5};
  const auto make = [&] {
    return std::vector{RandomParam("a", {4, 3}, DType::kF32, context, 1),
                       RandomParam("s", {}, DType::kF32, context, 2)};
  };
  std::vector<ParameterPtr> straight = make();
  ScaledAdam whole(straight, o);
  std::vector<ParameterPtr> resumed = make();
  auto part = std::make_unique<ScaledAdam>(resumed, o);
  for (uint64_t step = 0; step < 17; ++step) {
    if (step == 7) {
      const StateDict dict = part->state_dict();
      auto next = std::make_unique<ScaledAdam>(resumed, ScaledAdamOptions{});
      ASSERT_TRUE(next->load_state_dict(dict).ok());
      part = std::move(next);
    }
    for (size_t p = 0; p < 2; ++p) {
      const Tensor grad = RandomTensor(straight[p]->shape(), DType::kF32, context, 10 * step + p,
                                       step % 4 == 2 ? 9 : 1);
      straight[p]->set_grad(grad);
      resumed[p]->set_grad(grad);
    }
    whole.step();
    part->step();
    EXPECT_EQ(part->Clipping(0).factor, whole.Clipping(0).factor);
  }
  for (size_t p = 0; p < 2; ++p) EXPECT_EQ(Values(resumed[p]->data()), Values(straight[p]->data()));
  EXPECT_EQ(part->group_state(0), whole.group_state(0));

  StateDict broken = whole.state_dict();
  broken.group_states[0]["model_norms"].resize(3);
  const absl::Status status = part->load_state_dict(broken);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("\"model_norms\" has 3 numbers, expected 5"));
}

TEST(ScaledAdamTest, StateBytes) {
  const ContextPtr context = TestContext();
  const ParameterPtr p = RandomParam("p", {64, 32}, DType::kF32, context, 1),
                     s = RandomParam("s", {}, DType::kF32, context, 2);
  ScaledAdam optimizer({p, s}, {});
  for (const ParameterPtr& param : {p, s})
    param->set_grad(RandomTensor(param->shape(), DType::kF32, context, 3));
  optimizer.step();
  EXPECT_EQ(context->ledger().live_bytes(MemoryCategory::kOptimizerState), (64 * 32 * 8 + 16) + 8);
}

TEST(ScaledAdamTest, BadOptionsAreListedTogether) {
  const ContextPtr context = TestContext();
  try {
    ScaledAdam optimizer({RandomParam("p", {2}, DType::kF32, context, 1)},
                         {.lr = -1,
                          .betas = {0.9, 1},
                          .param_min_rms = 5,
                          .size_update_period = 0,
                          .clipping_update_period = 3});
    FAIL();
  } catch (const Error& error) {
    for (const char* part : {"lr is -1", "betas[1] is 1", "param_min_rms is 5",
                             "size_update_period is 0", "clipping_update_period is 3"}) {
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
}

}  // namespace scaled_adam_test
}  // namespace apogee::optim
