// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/grad_clip.h"

#include <gtest/gtest.h>

#include <limits>

#include "apogee/tests/optim/optim_fixture.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee::optim {
namespace grad_clip_test {

struct Grads {
  explicit Grads(DType dtype) : context(TestContext({.num_threads = 2})) {
    uint64_t seed = 1;
    for (const Shape& shape : AwkwardShapes()) {
      params.push_back(RandomParam(internal::Concat("p", seed), shape, dtype, context, seed));
      params.back()->set_grad(RandomTensor(shape, dtype, context, 100 + seed));
      for (const double g : Values(params.back()->grad())) before.push_back(g);
      ++seed;
    }
  }
  std::vector<double> After() const {
    std::vector<double> after;
    for (const ParameterPtr& p : params) {
      for (const double g : Values(p->grad())) after.push_back(g);
    }
    return after;
  }
  ContextPtr context;
  std::vector<ParameterPtr> params;
  std::vector<double> before;
};

double Reference(const std::vector<double>& x, NormKind kind) {
  double total = 0;
  for (const double value : x) {
    if (kind == NormKind::kL2) total += value * value;
    if (kind == NormKind::kL1) total += std::fabs(value);
    if (kind == NormKind::kMax) total = std::max(total, std::fabs(value));
  }
  return kind == NormKind::kL2 ? std::sqrt(total) : total;
}

TEST(GradClipTest, NormsAndFactors) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    for (const NormKind kind : {NormKind::kL2, NormKind::kL1, NormKind::kMax}) {
      Grads grads(dtype);
      const double norm = Reference(grads.before, kind);
      EXPECT_NEAR(GradNorm(grads.params, kind), norm, norm * 1e-12);
      const double max_norm = norm / 3;
      EXPECT_NEAR(ClipGradNorm(grads.params, {.max_norm = max_norm, .norm_kind = kind}), norm,
                  norm * 1e-12);
      const std::vector<double> after = grads.After();
      const double factor = max_norm / (norm + 1e-6);
      for (size_t i = 0; i < after.size(); ++i) {
        ASSERT_NEAR(after[i], factor * grads.before[i],
                    2 * Tolerance(dtype, ErrorKind::kElementwise));
      }
    }
  }
}

TEST(GradClipTest, ANormBelowTheLimitChangesNothing) {
  Grads grads(DType::kF32);
  ClipGradNorm(grads.params, {.max_norm = 1e9});
  EXPECT_EQ(grads.After(), grads.before);
}

TEST(GradClipTest, AbsentAndFrozenDoNotCount) {
  Grads grads(DType::kF64);
  const double rest = Reference(Values(grads.params[2]->grad()), NormKind::kL2);
  for (size_t p = 0; p < grads.params.size(); ++p) {
    if (p % 2 == 0 && p != 2) grads.params[p]->zero_grad();
    if (p % 2 == 1) grads.params[p]->set_requires_grad(false);
  }
  EXPECT_NEAR(ClipGradNorm(grads.params, {.max_norm = 0.1}), rest, 1e-12);
  EXPECT_FALSE(grads.params[0]->has_grad());
  EXPECT_EQ(ClipGradNorm({grads.params[0]}, {.max_norm = 0.1}), 0);
}

TEST(GradClipTest, NonFinite) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    Grads grads(DType::kF64);
    SetElement(grads.params[5]->grad(), 3, bad);
    EXPECT_THROW(ClipGradNorm(grads.params, {.error_if_nonfinite = true}), Error);
    EXPECT_EQ(Values(grads.params[2]->grad())[0], grads.before[2]);
    EXPECT_FALSE(std::isfinite(ClipGradNorm(grads.params, {})));
  }
}

TEST(GradClipTest, ByValue) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    Grads grads(dtype);
    ClipGradValue(grads.params, 0.25);
    const std::vector<double> after = grads.After();
    for (size_t i = 0; i < after.size(); ++i) {
      ASSERT_EQ(after[i], std::min(0.25, std::max(-0.25, grads.before[i])));
    }
  }
  Grads grads(DType::kF64);
  SetElement(grads.params[5]->grad(), 3, std::nan(""));
  ClipGradValue(grads.params, 0.25);
  EXPECT_TRUE(std::isnan(Values(grads.params[5]->grad())[3]));
  EXPECT_THROW(ClipGradValue({}, 0), Error);
  EXPECT_THROW(ClipGradNorm({}, {.max_norm = 0}), Error);
}

TEST(GradClipTest, NormDoesNotDependOnThreads) {
  const Shape shape{517, 401};
  double norms[3];
  for (int threads = 1; threads <= 3; ++threads) {
    const ContextPtr context = TestContext({.num_threads = threads});
    const ParameterPtr p = RandomParam("p", shape, DType::kF32, context, 1);
    p->set_grad(RandomTensor(shape, DType::kF32, context, 2));
    norms[threads - 1] = GradNorm({p});
  }
  EXPECT_EQ(norms[0], norms[1]);
  EXPECT_EQ(norms[0], norms[2]);
}

// Squares of large f32 gradients do not overflow: sums are f64.
TEST(GradClipTest, LargeGradients) {
  const ContextPtr context = TestContext();
  const ParameterPtr p = RandomParam("p", {3}, DType::kF32, context, 1);
  p->set_grad(Tensor::Full({3}, DType::kF32, 1e30, context));
  EXPECT_NEAR(GradNorm({p}) / (std::sqrt(3.0) * 1e30), 1, 1e-6);
}

}  // namespace grad_clip_test
}  // namespace apogee::optim
