// SPDX-License-Identifier: Apache-2.0

// unary_forward and unary_backward against the C++ library in double, over each function's domain
// and its ends.
#include <cmath>
#include <functional>

#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee {
namespace unary_test {

struct Reference {
  UnaryOp op;
  double first, second;
  std::function<double(double)> f, derivative;
  double low, high;  // of the arguments
};

const std::vector<Reference>& References() {
  static const std::vector<Reference> references{
      {UnaryOp::kExp, 0, 0, [](double x) { return std::exp(x); },
       [](double x) { return std::exp(x); }, -8, 8},
      {UnaryOp::kLog, 0, 0, [](double x) { return std::log(x); }, [](double x) { return 1 / x; },
       0.01, 50},
      {UnaryOp::kLog1p, 0, 0, [](double x) { return std::log1p(x); },
       [](double x) { return 1 / (1 + x); }, -0.9, 50},
      {UnaryOp::kSqrt, 0, 0, [](double x) { return std::sqrt(x); },
       [](double x) { return 0.5 / std::sqrt(x); }, 0.01, 50},
      {UnaryOp::kRsqrt, 0, 0, [](double x) { return 1 / std::sqrt(x); },
       [](double x) { return -0.5 / (x * std::sqrt(x)); }, 0.1, 50},
      {UnaryOp::kAbs, 0, 0, [](double x) { return std::abs(x); },
       [](double x) { return x < 0   ? -1.0
                             : x > 0 ? 1.0
                                     : 0.0; }, -8, 8},
      {UnaryOp::kSquare, 0, 0, [](double x) { return x * x; }, [](double x) { return 2 * x; }, -8,
       8},
      {UnaryOp::kSoftplus, 0, 0, [](double x) { return std::log1p(std::exp(x)); },
       [](double x) { return 1 / (1 + std::exp(-x)); }, -30, 30},
      {UnaryOp::kPower, 2.5, 0, [](double x) { return std::pow(x, 2.5); },
       [](double x) { return 2.5 * std::pow(x, 1.5); }, 0.01, 8},
      {UnaryOp::kClamp, -1.25, 2, [](double x) { return std::clamp(x, -1.25, 2.0); },
       [](double x) { return x < -1.25 || x > 2 ? 0.0 : 1.0; }, -8, 8},
      {UnaryOp::kSoftCap, 3, 0, [](double x) { return 3 * std::tanh(x / 3); },
       [](double x) { return 1 / (std::cosh(x / 3) * std::cosh(x / 3)); }, -12, 12},
  };
  return references;
}

std::vector<double> Spread(double low, double high, int64_t n) {
  std::vector<double> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = low + (high - low) * static_cast<double>(i) / static_cast<double>(n - 1);
  }
  return values;
}

class UnaryTest : public ::testing::Test {
 protected:
  std::vector<double> Forward(const Reference& op, const Buffer& x) {
    Buffer y(x.dtype(), x.size());
    context_->kernels().unary_forward(
        *context_, {op.op, x.dtype(), x.data(), y.data(), x.size(), op.first, op.second});
    return y.values();
  }
  std::vector<double> Forward(UnaryOp op, const std::vector<double>& x) {
    return Forward({op, 0, 0, {}, {}, 0, 0}, Buffer(DType::kF32, x));
  }
  ContextPtr context_ = TestContext({.num_threads = 2});
};

TEST_F(UnaryTest, MatchesReference) {
  for (DType dtype : kFloats) {
    for (const Reference& op : References()) {
      for (int64_t n : {int64_t{2}, int64_t{33}, int64_t{40000}}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(op.op)) + " " + DTypeName(dtype));
        const Buffer x(dtype, Spread(op.low, op.high, n));
        std::vector<double> expected = x.values();
        for (double& value : expected) value = op.f(value);
        // A few ulps of the functions, and the rounding of the store.
        ExpectClose(Forward(op, x), expected, Tolerance(dtype, ErrorKind::kElementwise));
      }
    }
  }
}

TEST_F(UnaryTest, BackwardMatchesReferenceAlsoInPlace) {
  for (DType dtype : kFloats) {
    for (const Reference& op : References()) {
      SCOPED_TRACE(std::to_string(static_cast<int>(op.op)) + " " + DTypeName(dtype));
      const Buffer x(dtype, Spread(op.low, op.high, 1001));
      const bool saves_result =
          op.op == UnaryOp::kExp || op.op == UnaryOp::kSqrt || op.op == UnaryOp::kSoftCap;
      const Buffer saved = saves_result ? Buffer(dtype, Forward(op, x)) : x;
      Buffer dx = Buffer::Normal(dtype, x.size(), 3);
      std::vector<double> expected = dx.values();
      const std::vector<double> xs = x.values();
      for (size_t i = 0; i < expected.size(); ++i) expected[i] *= op.derivative(xs[i]);
      context_->kernels().unary_backward(*context_, {op.op, dtype, saved.data(), dx.data(),
                                                     dx.data(), dx.size(), op.first, op.second});
      // Where tanh saturates, the rounding of the result shows in 1 - tanh^2.
      const double factor = op.op == UnaryOp::kSoftCap ? 2 : 1;
      ExpectClose(dx.values(), expected, factor * Tolerance(dtype, ErrorKind::kReduction));
    }
  }
}

TEST_F(UnaryTest, EndsOfTheDomains) {
  const double inf = INFINITY;
  ExpectClose(Forward(UnaryOp::kLog, {0, -1, inf, NAN, 1, 1e-40, -0.0}),
              {-inf, NAN, inf, NAN, 0, std::log(1e-40), -inf}, 1e-6);
  ExpectClose(Forward(UnaryOp::kLog1p, {-1, -2, inf, NAN, 0, 1e-20, 1e30}),
              {-inf, NAN, inf, NAN, 0, 1e-20, std::log(1e30)}, 1e-6);
  ExpectClose(Forward(UnaryOp::kExp, {-inf, inf, NAN, 100, -200}), {0, inf, NAN, inf, 0}, 0);
  ExpectClose(Forward(UnaryOp::kSqrt, {0, -1, inf, NAN}), {0, NAN, inf, NAN}, 0);
  ExpectClose(Forward(UnaryOp::kRsqrt, {0, -1, inf}), {inf, NAN, 0}, 0);
  ExpectClose(Forward(UnaryOp::kSoftplus, {-inf, inf, NAN, 200, -200}), {0, inf, NAN, 200, 0}, 0);
  ExpectClose(Forward(UnaryOp::kAbs, {-inf, NAN, -0.0}), {inf, NAN, 0}, 0);
  Buffer x(DType::kF32, {NAN, -inf, inf}), y(DType::kF32, 3);
  context_->kernels().unary_forward(*context_,
                                    {UnaryOp::kClamp, DType::kF32, x.data(), y.data(), 3, -inf, 2});
  ExpectClose(y.values(), {NAN, -inf, 2}, 0);
  context_->kernels().unary_forward(*context_,
                                    {UnaryOp::kSoftCap, DType::kF32, x.data(), y.data(), 3, 5, 0});
  ExpectClose(y.values(), {NAN, -5, 5}, 0);
}

// x^0 is 1 everywhere, with a derivative of 0.
TEST_F(UnaryTest, PowerOfZero) {
  const Buffer x(DType::kF32, {0, -2, INFINITY}), dy(DType::kF32, {1, 1, 1});
  EXPECT_EQ(Forward({UnaryOp::kPower, 0, 0, {}, {}, 0, 0}, x), std::vector<double>(3, 1.0));
  Buffer dx(DType::kF32, 3);
  context_->kernels().unary_backward(
      *context_, {UnaryOp::kPower, DType::kF32, x.data(), dy.data(), dx.data(), 3, 0, 0});
  EXPECT_EQ(dx.values(), std::vector<double>(3, 0.0));
}

// log1p keeps its relative precision where 1 + x rounds.
TEST_F(UnaryTest, SmallArgumentsOfLog1p) {
  for (double x = 1e-12; x < 1; x *= 3) {
    const Buffer argument(DType::kF32, {x, -x * 0.9});
    const std::vector<double> values = argument.values(), got = Forward(UnaryOp::kLog1p, values);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_NEAR(got[i] / std::log1p(values[i]), 1, 5e-7) << values[i];
    }
  }
}

}  // namespace unary_test
}  // namespace apogee
