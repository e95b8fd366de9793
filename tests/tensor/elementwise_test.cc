// SPDX-License-Identifier: Apache-2.0

// fill, binary, where and scale_add against plain loops in double.
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
    case BinaryOp::kMax:
      return std::max(a, b);
    case BinaryOp::kMin:
      return std::min(a, b);
    case BinaryOp::kLess:
      return a < b ? 1 : 0;
    case BinaryOp::kLessEqual:
      return a <= b ? 1 : 0;
    case BinaryOp::kEqual:
      return a == b ? 1 : 0;
  }
  return 0;
}

constexpr BinaryOp kBinaryOps[] = {BinaryOp::kAdd,  BinaryOp::kSub,       BinaryOp::kMul,
                                   BinaryOp::kDiv,  BinaryOp::kMax,       BinaryOp::kMin,
                                   BinaryOp::kLess, BinaryOp::kLessEqual, BinaryOp::kEqual};

// The place in an operand of element i of the result: the definition, dim by dim.
size_t PlaceIn(const Shape& operand, const Shape& shape, int64_t i) {
  int64_t place = 0, step = 1;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    const int own = d - (shape.rank() - operand.rank());
    if (own < 0) break;
    place += (operand[own] == 1 ? 0 : i % shape[d]) * step;
    step *= operand[own];
    i /= shape[d];
  }
  return static_cast<size_t>(place);
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

struct BroadcastCase {
  Shape shape, a, b;
};
const BroadcastCase kBroadcasts[] = {
    {{}, {}, {}},
    {{17}, {17}, {17}},
    {{33, 17}, {33, 17}, {17}},
    {{33, 17}, {17}, {33, 17}},
    {{34}, {34}, {}},
    {{34}, {1}, {34}},
    {{200, 301}, {200, 301}, {301}},
    {{150, 301}, {150, 301}, {150, 1}},
    {{150, 301}, {150, 1}, {1, 301}},
    {{3, 1, 16, 40}, {3, 1, 16, 40}, {16, 1}},
    {{2, 3, 4, 5, 6}, {2, 1, 4, 1, 6}, {3, 1, 5, 1}},
};

TEST(Binary, MatchesReferenceForEveryBroadcast) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (DType dtype : kFloats) {
    for (BinaryOp op : kBinaryOps) {
      for (const auto& [shape, a_shape, b_shape] : kBroadcasts) {
        const Buffer a = Buffer::Normal(dtype, a_shape.numel(), 1);
        std::vector<double> divisors = Buffer::Normal(dtype, b_shape.numel(), 2).values();
        for (double& b : divisors) b = b + (b < 0 ? -0.5 : 0.5);
        if (op == BinaryOp::kEqual || op == BinaryOp::kLessEqual) {
          const std::vector<double> as = a.values();
          for (size_t i = 0; i < divisors.size(); i += 2) divisors[i] = as[i % as.size()];
        }
        const Buffer b(dtype, divisors);
        Buffer out(IsComparison(op) ? DType::kU8 : dtype, shape.numel());
        context->kernels().binary(*context, {op, dtype, a.data(), b.data(), out.data(),
                                             MakeBroadcast(shape, {a_shape, b_shape})});
        std::vector<double> expected(static_cast<size_t>(shape.numel()));
        const std::vector<double> as = a.values(), bs = b.values();
        for (size_t i = 0; i < expected.size(); ++i) {
          const auto at = static_cast<int64_t>(i);
          expected[i] = Apply(op, as[PlaceIn(a_shape, shape, at)], bs[PlaceIn(b_shape, shape, at)]);
        }
        ExpectClose(out.values(), expected, Tolerance(dtype, ErrorKind::kElementwise));
      }
    }
  }
}

TEST(Binary, ComparesIntegersExactly) {
  const ContextPtr context = TestContext();
  // Too close for a float.
  const Buffer a(DType::kI64, {1 << 30, 1 << 30, -7});
  const Buffer b(DType::kI64, {(1 << 30) + 1, 1 << 30, -7});
  for (auto [op, expected] : {std::pair{BinaryOp::kLess, std::vector<double>{1, 0, 0}},
                              std::pair{BinaryOp::kEqual, std::vector<double>{0, 1, 1}}}) {
    Buffer out(DType::kU8, 3);
    context->kernels().binary(*context, {op, DType::kI64, a.data(), b.data(), out.data(),
                                         MakeBroadcast({3}, {{3}, {3}})});
    EXPECT_EQ(out.values(), expected);
  }
}

TEST(Binary, InPlaceAndNaN) {
  const ContextPtr context = TestContext();
  const Broadcast over = MakeBroadcast({4}, {{4}, {4}});
  Buffer a(DType::kF32, {1, NAN, INFINITY, -INFINITY});
  const Buffer b(DType::kF32, {NAN, 1, -INFINITY, 1});
  for (BinaryOp op : {BinaryOp::kMax, BinaryOp::kMin}) {
    Buffer out(DType::kF32, 4);
    context->kernels().binary(*context, {op, DType::kF32, a.data(), b.data(), out.data(), over});
    const bool max = op == BinaryOp::kMax;
    ExpectClose(out.values(), {NAN, NAN, max ? INFINITY : -INFINITY, max ? 1 : -INFINITY}, 0);
  }
  context->kernels().binary(*context,
                            {BinaryOp::kAdd, DType::kF32, a.data(), b.data(), a.data(), over});
  ExpectClose(a.values(), {NAN, NAN, NAN, -INFINITY}, 0);
}

TEST(Where, MatchesReferenceForEveryBroadcast) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kI64, DType::kU8}) {
    for (const auto& [shape, a_shape, b_shape] : kBroadcasts) {
      for (const Shape& mask_shape : {shape, b_shape}) {
        std::vector<double> mask(static_cast<size_t>(mask_shape.numel()));
        for (size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 == 0 ? 2 : 0;
        std::vector<double> as(static_cast<size_t>(a_shape.numel()));
        for (size_t i = 0; i < as.size(); ++i) as[i] = static_cast<double>(i % 100);
        std::vector<double> bs(static_cast<size_t>(b_shape.numel()));
        for (size_t i = 0; i < bs.size(); ++i) bs[i] = static_cast<double>(100 + i % 100);
        const Buffer mask_buffer(DType::kU8, mask), a(dtype, as), b(dtype, bs);
        Buffer out(dtype, shape.numel());
        context->kernels().where(*context,
                                 {dtype, mask_buffer.data(), a.data(), b.data(), out.data(),
                                  MakeBroadcast(shape, {mask_shape, a_shape, b_shape})});
        std::vector<double> expected(static_cast<size_t>(shape.numel()));
        for (size_t i = 0; i < expected.size(); ++i) {
          const auto at = static_cast<int64_t>(i);
          expected[i] = mask[PlaceIn(mask_shape, shape, at)] != 0 ? as[PlaceIn(a_shape, shape, at)]
                                                                  : bs[PlaceIn(b_shape, shape, at)];
        }
        EXPECT_EQ(out.values(), expected);
      }
    }
  }
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
    context.kernels().binary(context, {BinaryOp::kMul, DType::kBF16, a.data(), b.data(), out.data(),
                                       MakeBroadcast({331, 301}, {{331, 301}, {301}})});
    return out.bytes();
  });
}

}  // namespace elementwise_test
}  // namespace apogee
