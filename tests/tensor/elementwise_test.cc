// SPDX-License-Identifier: Apache-2.0

// fill, binary and scale_add against plain loops in double.
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee {
namespace elementwise_test {

double Apply(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return a + b;
    case BinaryOp::kSub:
      return a - b;
    case BinaryOp::kMul:
      return a * b;
    case BinaryOp::kDiv:
      return a / b;
  }
  return 0;
}

TEST(Fill, WritesEveryElementOfEveryDType) {
  const ContextPtr context = TestContext();
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kI64, DType::kI32,
                      DType::kU8, DType::kI8}) {
    for (int64_t n : {0, 1, 17, 1000}) {
      Buffer y(dtype, n);
      context->kernels().fill(*context, {dtype, y.data(), n, 3.0});
      EXPECT_EQ(y.values(), std::vector<double>(static_cast<size_t>(n), 3.0));
    }
  }
}

TEST(Fill, TimesANumberOfTheDevice) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    for (DType scalar : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
      const Buffer factor(scalar, {1, -2.5});
      Buffer y(dtype, 67);
      // The second of them.
      const void* second = static_cast<const char*>(factor.data()) + DTypeSize(scalar);
      context->kernels().fill(*context, {dtype, y.data(), 67, 3.0, {second, scalar}});
      EXPECT_EQ(y.values(), std::vector<double>(67, -7.5)) << DTypeName(dtype);
    }
  }
}

TEST(Binary, MatchesReferenceForEveryPeriod) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (DType dtype : kFloats) {
    for (BinaryOp op : {BinaryOp::kAdd, BinaryOp::kSub, BinaryOp::kMul, BinaryOp::kDiv}) {
      for (auto [n, period] : {std::pair<int64_t, int64_t>{1, 1},
                               {17, 17},
                               {33 * 17, 17},
                               {34, 1},
                               {200 * 301, 301}}) {
        const Buffer a = Buffer::Normal(dtype, n, 1);
        std::vector<double> divisors = Buffer::Normal(dtype, period, 2).values();
        for (double& b : divisors) b = b + (b < 0 ? -0.5 : 0.5);
        const Buffer b(dtype, divisors);
        Buffer out(dtype, n);
        context->kernels().binary(*context, {op, dtype, a.data(), b.data(), out.data(), n, period});
        std::vector<double> expected = a.values();
        const std::vector<double> bs = b.values();
        for (size_t i = 0; i < expected.size(); ++i) {
          expected[i] = Apply(op, expected[i], bs[i % bs.size()]);
        }
        ExpectClose(out.values(), expected, Tolerance(dtype, ErrorKind::kElementwise));
      }
    }
  }
}

TEST(Binary, InPlaceAndNaN) {
  const ContextPtr context = TestContext();
  Buffer a(DType::kF32, {1, NAN, INFINITY, -INFINITY});
  const Buffer b(DType::kF32, {NAN, 1, -INFINITY, 1});
  context->kernels().binary(*context,
                            {BinaryOp::kAdd, DType::kF32, a.data(), b.data(), a.data(), 4, 4});
  ExpectClose(a.values(), {NAN, NAN, NAN, -INFINITY}, 0);
}

TEST(ScaleAdd, MatchesReferenceForEveryPairOfDTypes) {
  const ContextPtr context = TestContext();
  for (DType x_dtype : kFloats) {
    for (DType y_dtype : kFloats) {
      for (int64_t n : {0, 1, 17, 33 * 17}) {
        for (double beta : {0.0, 1.0, -0.5}) {
          const Buffer x = Buffer::Normal(x_dtype, n, 1);
          Buffer y = Buffer::Normal(y_dtype, n, 2);
          std::vector<double> expected = y.values();
          const std::vector<double> xs = x.values();
          for (size_t i = 0; i < expected.size(); ++i) {
            expected[i] = 0.75 * xs[i] + beta * expected[i];
          }
          context->kernels().scale_add(*context,
                                       {x_dtype, y_dtype, x.data(), y.data(), n, 0.75, beta});
          const double tolerance = Tolerance(y_dtype, ErrorKind::kElementwise);
          ExpectClose(y.values(), expected, tolerance);
        }
      }
    }
  }
}

TEST(ScaleAdd, BetaZeroIgnoresNaNButAlphaKeepsIt) {
  const ContextPtr context = TestContext();
  const Buffer x(DType::kF32, {1, NAN});
  Buffer y(DType::kF32, {NAN, 1});
  context->kernels().scale_add(*context, {DType::kF32, DType::kF32, x.data(), y.data(), 2, 2, 0});
  ExpectClose(y.values(), {2, NAN}, 0);
}

TEST(Elementwise, SameBitsForAnyNumberOfThreads) {
  const int64_t n = 301 * 331;
  const Buffer a = Buffer::Normal(DType::kBF16, n, 1);
  const Buffer b = Buffer::Normal(DType::kBF16, 301, 2);
  ExpectSameBits([&](const DeviceContext& context) {
    Buffer out(DType::kBF16, n);
    context.kernels().binary(
        context, {BinaryOp::kMul, DType::kBF16, a.data(), b.data(), out.data(), n, 301});
    return out.bytes();
  });
}

}  // namespace elementwise_test
}  // namespace apogee
