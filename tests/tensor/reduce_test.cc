// SPDX-License-Identifier: Apache-2.0

// sum over every position of the reduced dim.
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee {
namespace reduce_test {

std::vector<double> Reference(const std::vector<double>& x, int64_t outer, int64_t reduce,
                              int64_t inner) {
  std::vector<double> y(static_cast<size_t>(outer * inner), 0.0);
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t r = 0; r < reduce; ++r) {
      for (int64_t i = 0; i < inner; ++i) {
        y[static_cast<size_t>(o * inner + i)] +=
            x[static_cast<size_t>((o * reduce + r) * inner + i)];
      }
    }
  }
  return y;
}

struct Sizes {
  int64_t outer, reduce, inner;
};
constexpr Sizes kSizes[] = {{0, 3, 2},     {2, 0, 3},    {2, 0, 1},     {1, 1, 1},    {17, 1, 1},
                            {1, 17, 1},    {33, 17, 1},  {1, 33, 17},   {3, 33, 17},  {2, 5, 1},
                            {1, 20000, 1}, {3, 9001, 1}, {1, 1000, 33}, {2, 3, 2100}, {2, 700, 40},
                            {300, 3, 2},   {5, 2000, 1}, {1, 70000, 2}};

TEST(Sum, MatchesReference) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (DType x_dtype : kFloats) {
    for (DType y_dtype : {x_dtype, StatisticDType(x_dtype)}) {
      for (auto [outer, reduce, inner] : kSizes) {
        SCOPED_TRACE(::testing::Message()
                     << DTypeName(x_dtype) << " " << outer << "," << reduce << "," << inner);
        const Buffer x = Buffer::Normal(x_dtype, outer * reduce * inner, 1);
        Buffer y(y_dtype, std::vector<double>(static_cast<size_t>(outer * inner), 0.5));
        std::vector<double> expected = Reference(x.values(), outer, reduce, inner);
        // Relative to the size of the terms that were added.
        const double floor = std::sqrt(static_cast<double>(reduce) + 1) + 1;
        const double tolerance = Tolerance(y_dtype, ErrorKind::kReduction);
        SumArgs args{x_dtype, y_dtype, x.data(), y.data(), outer, reduce, inner, 0.5, true};
        context->kernels().sum(*context, args);
        for (double& value : expected) value = 0.5 * value + 0.5;
        ExpectClose(y.values(), expected, tolerance, floor);
        args.accumulate = false;
        args.scale = 1;
        context->kernels().sum(*context, args);
        for (double& value : expected) value = 2 * value - 1;
        ExpectClose(y.values(), expected, tolerance, floor);
      }
    }
  }
}

TEST(Sum, LongSumsKeepTheirPrecision) {
  const ContextPtr context = TestContext();
  const int64_t n = 1 << 20;
  // 0.1 a million times: a plain f32 loop is off by a percent.
  const Buffer x(DType::kF32, std::vector<double>(static_cast<size_t>(n), 0.1));
  Buffer y(DType::kF32, 1);
  context->kernels().sum(*context,
                         {DType::kF32, DType::kF32, x.data(), y.data(), 1, n, 1, 1, false});
  EXPECT_NEAR(y.values()[0] / (0.1 * static_cast<double>(n)), 1, 1e-6);
}

TEST(Sum, NaNAndInfinity) {
  const ContextPtr context = TestContext();
  const Buffer x(DType::kF32, {1, NAN, INFINITY, 1, INFINITY, -INFINITY});
  Buffer rows(DType::kF32, 3);
  context->kernels().sum(*context,
                         {DType::kF32, DType::kF32, x.data(), rows.data(), 3, 2, 1, 1, false});
  ExpectClose(rows.values(), {NAN, INFINITY, NAN}, 0);
  Buffer columns(DType::kF32, 2);
  context->kernels().sum(*context,
                         {DType::kF32, DType::kF32, x.data(), columns.data(), 1, 3, 2, 1, false});
  ExpectClose(columns.values(), {INFINITY, NAN}, 0);
}

TEST(Sum, SameBitsForAnyNumberOfThreads) {
  for (DType dtype : kFloats) {
    const Buffer x = Buffer::Normal(dtype, 1000 * 301, 1);
    for (auto [outer, reduce, inner] :
         {Sizes{1, 301000, 1}, Sizes{1000, 301, 1}, Sizes{1, 1000, 301}, Sizes{10, 100, 301}}) {
      ExpectSameBits(
          [&, outer = outer, reduce = reduce, inner = inner](const DeviceContext& context) {
            Buffer y(dtype, outer * inner);
            context.kernels().sum(
                context, {dtype, dtype, x.data(), y.data(), outer, reduce, inner, 1, false});
            return y.bytes();
          });
    }
  }
}

}  // namespace reduce_test
}  // namespace apogee
