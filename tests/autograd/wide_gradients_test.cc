// SPDX-License-Identifier: Apache-2.0

// Norms of an f32 residual stream with parameters of 16 bits, and linear layers between 16 bits and
// such a stream, against plain loops in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/linear.h"
#include "apogee/autograd/functions/norm.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/autograd/node.h"
#include "apogee/autograd/parameter.h"
#include "apogee/tests/support/test_context.h"

namespace apogee::autograd {
namespace wide_gradients_test {

constexpr int64_t kRows = 5, kDim = 19, kOut = 7;
constexpr double kEps = 1e-5;

// Values that 8 bits of mantissa represent, or not.
std::vector<double> Values(int64_t n, double seed, bool exact) {
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) {
    const double x = std::sin(seed + 1.7 * static_cast<double>(i));
    values.push_back(exact ? std::round(128 * x) / 128 : x);
  }
  return values;
}

class WideGradientsTest : public ::testing::Test {
 protected:
  Tensor Make(const std::vector<double>& values, const Shape& shape, DType dtype) const {
    return Tensor::FromVector<double>(values, shape, context_, dtype);
  }
  ParameterPtr Leaf(const std::vector<double>& values, const Shape& shape, DType dtype) const {
    auto leaf = std::make_shared<Parameter>("leaf", Make(values, shape, dtype));
    leaf->set_grad_dtype(DType::kF32);
    return leaf;
  }

 private:
  ContextPtr context_ = TestContext();
};

double LargestError(const Tensor& got, const std::vector<double>& want) {
  const std::vector<double> values = got.ToVector<double>();
  double error = 0, scale = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error = std::max(error, std::abs(values[i] - want[i]));
    scale = std::max(scale, std::abs(want[i]));
  }
  return error / scale;
}

// y = norm(x), z = y w^T and the gradients for dz = `dz`.
struct Reference {
  std::vector<double> y, dx, dweight;
};
Reference Compute(const std::vector<double>& x, const std::vector<double>& gain,
                  const std::vector<double>& w, const std::vector<double>& dz, bool rms) {
  Reference r{std::vector<double>(x.size()), std::vector<double>(x.size()),
              std::vector<double>(kDim)};
  for (int64_t row = 0; row < kRows; ++row) {
    const auto at = [row](int64_t i) { return static_cast<size_t>(row * kDim + i); };
    double mean = 0, var = 0;
    for (int64_t i = 0; i < kDim && !rms; ++i) mean += x[at(i)] / kDim;
    for (int64_t i = 0; i < kDim; ++i) var += std::pow(x[at(i)] - mean, 2) / kDim;
    const double rstd = 1 / std::sqrt(var + kEps);
    std::vector<double> g(kDim);
    double sum = 0, dot = 0;
    for (int64_t i = 0; i < kDim; ++i) {
      const auto n = static_cast<size_t>(i);
      double dy = 0;
      for (int64_t o = 0; o < kOut; ++o) {
        dy += dz[static_cast<size_t>(row * kOut + o)] * w[static_cast<size_t>(o * kDim + i)];
      }
      const double xhat = (x[at(i)] - mean) * rstd;
      r.y[at(i)] = xhat * gain[n];
      r.dweight[n] += dy * xhat;
      g[n] = dy * gain[n];
      sum += g[n] / kDim;
      dot += g[n] * xhat / kDim;
    }
    for (int64_t i = 0; i < kDim; ++i) {
      const double xhat = (x[at(i)] - mean) * rstd;
      r.dx[at(i)] = rstd * (g[static_cast<size_t>(i)] - (rms ? 0 : sum) - xhat * dot);
    }
  }
  return r;
}

TEST_F(WideGradientsTest, ANormReadsF32AndTakesF32Gradients) {
  const auto xs = Values(kRows * kDim, 1, false), gains = Values(kDim, 2, true);
  const auto ws = Values(kOut * kDim, 3, true), dzs = Values(kRows * kOut, 4, true);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const auto& [rms, offset] : {std::pair(false, 0.0), {true, 0.0}, {true, 1.0}}) {
      const ParameterPtr x = Leaf(xs, {kRows, kDim}, DType::kF32),
                         gain = Leaf(gains, {kDim}, dtype);
      const Tensor w = Make(ws, {kOut, kDim}, dtype);
      Tensor y = rms ? RmsNorm(x->value(), gain->value(), kEps, offset)
                     : LayerNorm(x->value(), gain->value(), {}, kEps);
      // The sums with the offset have more digits than 16 bits have.
      std::vector<double> factors = gains;
      for (double& factor : factors) factor += offset;
      const Reference want = Compute(xs, factors, ws, dzs, rms);
      ASSERT_EQ(y.dtype(), dtype);
      EXPECT_LT(LargestError(y, want.y), dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11);
      // A view, as hooks of modules make one, changes nothing.
      const Tensor z = Linear(View(y, y.shape()), w, {});
      Backward(z, {.grad = Make(dzs, {kRows, kOut}, dtype)});
      // No gradient was rounded to 16 bits: that would be an error of about 2e-3 or 2e-4.
      EXPECT_LT(LargestError(x->grad(), want.dx), 2e-6);
      EXPECT_LT(LargestError(gain->grad(), want.dweight), 2e-6);
    }
  }
}

TEST_F(WideGradientsTest, ACastTakesTheGradientsOfItsInput) {
  const auto xs = Values(kRows * kDim, 1, true), ws = Values(kOut * kDim, 3, true);
  const auto dzs = Values(kRows * kOut, 4, true);
  const ParameterPtr x = Leaf(xs, {kRows, kDim}, DType::kF32);
  const Tensor w = Make(ws, {kOut, kDim}, DType::kBF16);
  const Tensor z = Linear(Cast(x->value(), DType::kBF16), w, {});
  Backward(z, {.grad = Make(dzs, {kRows, kOut}, DType::kBF16)});
  std::vector<double> want(xs.size());
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < kDim; ++i) {
      for (int64_t o = 0; o < kOut; ++o) {
        want[static_cast<size_t>(r * kDim + i)] +=
            dzs[static_cast<size_t>(r * kOut + o)] * ws[static_cast<size_t>(o * kDim + i)];
      }
    }
  }
  EXPECT_LT(LargestError(x->grad(), want), 2e-6);
}

TEST_F(WideGradientsTest, ALinearLayerOfOutDTypeRoundsOnlyItsGradient) {
  const auto xs = Values(kRows * kDim, 1, true), ws = Values(kOut * kDim, 3, true);
  const auto biases = Values(kOut, 5, true), dys = Values(kRows * kOut, 4, false);
  const ParameterPtr x = Leaf(xs, {kRows, kDim}, DType::kBF16),
                     w = Leaf(ws, {kOut, kDim}, DType::kBF16);
  const ParameterPtr bias = Leaf(biases, {kOut}, DType::kBF16);
  const Tensor y = Linear(x->value(), w->value(), bias->value(), {.out_dtype = DType::kF32});
  ASSERT_EQ(y.dtype(), DType::kF32);
  Backward(y, {.grad = Make(dys, {kRows, kOut}, DType::kF32)});
  std::vector<double> want_y(kRows * kOut), want_bias(kOut), want_w(ws.size());
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t o = 0; o < kOut; ++o) {
      const auto at = static_cast<size_t>(r * kOut + o), n = static_cast<size_t>(o);
      want_y[at] = biases[n];
      want_bias[n] += dys[at];
      const double rounded = static_cast<float>(BFloat16(static_cast<float>(dys[at])));
      for (int64_t i = 0; i < kDim; ++i) {
        const double element = xs[static_cast<size_t>(r * kDim + i)];
        want_y[at] += element * ws[static_cast<size_t>(o * kDim + i)];
        want_w[static_cast<size_t>(o * kDim + i)] += rounded * element;
      }
    }
  }
  EXPECT_LT(LargestError(y, want_y), 2e-6);
  EXPECT_LT(LargestError(bias->grad(), want_bias), 2e-6);
  EXPECT_LT(LargestError(w->grad(), want_w), 2e-6);
}

}  // namespace wide_gradients_test
}  // namespace apogee::autograd
