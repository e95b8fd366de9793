// SPDX-License-Identifier: Apache-2.0

// extreme, statistic, cum_sum, gather and scatter_add against plain loops in double.
#include <cmath>
#include <limits>

#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee {
namespace statistic_test {

// [outer, reduce, inner].
struct Sizes {
  int64_t outer, reduce, inner;
  int64_t numel() const { return outer * reduce * inner; }
  size_t At(int64_t o, int64_t r, int64_t i) const {
    return static_cast<size_t>((o * reduce + r) * inner + i);
  }
};
const Sizes kSizes[] = {{1, 1, 1},  {5, 33, 1},  {3, 7000, 1},  {1, 100000, 1},
                        {2, 17, 3}, {3, 1, 700}, {2, 300, 513}, {1, 3000, 2}};

// Calls fn(o, i, values) for each result, with the values that it reduces.
template <typename Fn>
void ForResults(const Sizes& sizes, const std::vector<double>& x, const Fn& fn) {
  for (int64_t o = 0; o < sizes.outer; ++o) {
    for (int64_t i = 0; i < sizes.inner; ++i) {
      std::vector<double> values;
      for (int64_t r = 0; r < sizes.reduce; ++r) values.push_back(x[sizes.At(o, r, i)]);
      fn(static_cast<size_t>(o * sizes.inner + i), values);
    }
  }
}

class StatisticTest : public ::testing::Test {
 protected:
  ContextPtr context_ = TestContext({.num_threads = 2});
};

TEST_F(StatisticTest, ExtremesAndTheirFirstPlaces) {
  for (DType dtype : kFloats) {
    for (const Sizes& sizes : kSizes) {
      for (Extreme kind : {Extreme::kMax, Extreme::kMin}) {
        // Coarse numbers, so that equal ones occur.
        std::vector<double> values = Buffer::Normal(dtype, sizes.numel(), 1).values();
        for (double& value : values) value = std::round(value * 8) / 8;
        const Buffer x(dtype, values);
        const int64_t n = sizes.outer * sizes.inner;
        Buffer y(dtype, n), index(DType::kI64, n);
        context_->kernels().extreme(
            *context_, {kind, dtype, x.data(), y.data(), static_cast<int64_t*>(index.data()),
                        sizes.outer, sizes.reduce, sizes.inner});
        std::vector<double> extremes(static_cast<size_t>(n)), places(extremes);
        ForResults(sizes, values, [&](size_t at, const std::vector<double>& each) {
          const auto place = kind == Extreme::kMax ? std::max_element(each.begin(), each.end())
                                                   : std::min_element(each.begin(), each.end());
          extremes[at] = *place;
          places[at] = static_cast<double>(place - each.begin());
        });
        EXPECT_EQ(y.values(), extremes);
        EXPECT_EQ(index.values(), places);
      }
    }
  }
}

TEST_F(StatisticTest, NaNIsExtreme) {
  // The second NaN lies before the first one modulo 64.
  for (const Sizes& sizes : {Sizes{1, 300, 1}, Sizes{1, 280, 2}}) {
    std::vector<double> values(static_cast<size_t>(sizes.numel()), 1);
    values[sizes.At(0, 150, 0)] = NAN;
    values[sizes.At(0, 193, 0)] = NAN;
    const Buffer x(DType::kF32, values);
    for (Extreme kind : {Extreme::kMax, Extreme::kMin}) {
      Buffer y(DType::kF32, sizes.inner), index(DType::kI64, sizes.inner);
      context_->kernels().extreme(
          *context_, {kind, DType::kF32, x.data(), y.data(), static_cast<int64_t*>(index.data()),
                      sizes.outer, sizes.reduce, sizes.inner});
      EXPECT_TRUE(std::isnan(y.values()[0]));
      EXPECT_EQ(index.values()[0], 150);
    }
  }
}

struct StatisticRun {
  std::vector<double> y, stat, dx;
};

StatisticRun RunStatistic(const DeviceContext& context, Statistic kind, const Buffer& x,
                          const Buffer& dy, const Sizes& sizes, double scale) {
  const DType dtype = x.dtype();
  const int64_t n = sizes.outer * sizes.inner;
  Buffer y(dtype, n), stat(ComputeDType(dtype), n), dx(dtype, sizes.numel());
  context.kernels().statistic_forward(context, {kind, dtype, x.data(), y.data(), stat.data(),
                                                sizes.outer, sizes.reduce, sizes.inner, scale});
  context.kernels().statistic_backward(
      context, {kind, dtype, x.data(), stat.data(), dy.data(), dx.data(), sizes.outer, sizes.reduce,
                sizes.inner, scale});
  return {y.values(), stat.values(), dx.values()};
}

TEST_F(StatisticTest, LogSumExp) {
  for (DType dtype : kFloats) {
    for (const Sizes& sizes : kSizes) {
      const Buffer x = Buffer::Normal(dtype, sizes.numel(), 1, 3);
      const Buffer dy = Buffer::Normal(dtype, sizes.outer * sizes.inner, 2);
      const StatisticRun got = RunStatistic(*context_, Statistic::kLogSumExp, x, dy, sizes, 1);
      std::vector<double> y(got.y.size()), dx(got.dx.size());
      const std::vector<double> dys = dy.values();
      ForResults(sizes, x.values(), [&](size_t at, const std::vector<double>& each) {
        double sum = 0;
        for (const double value : each) sum += std::exp(value);
        y[at] = std::log(sum);
        for (int64_t r = 0; r < sizes.reduce; ++r) {
          const auto o = static_cast<int64_t>(at) / sizes.inner;
          const auto i = static_cast<int64_t>(at) % sizes.inner;
          dx[sizes.At(o, r, i)] = std::exp(each[static_cast<size_t>(r)] - y[at]) * dys[at];
        }
      });
      ExpectClose(got.y, y, Tolerance(dtype, ErrorKind::kReduction));
      ExpectClose(got.dx, dx, Tolerance(dtype, ErrorKind::kReduction));
    }
  }
}

TEST_F(StatisticTest, LogSumExpOfInfinities) {
  const double inf = std::numeric_limits<double>::infinity();
  // As rows, and as columns of the transposed matrix.
  const std::vector<double> rows{-inf, -inf, -inf, 1, inf, 2, NAN, 1, 2, 1000, 1000, -inf};
  const std::vector<double> expected{-inf, inf, NAN, 1000 + std::log(2.0)};
  std::vector<double> columns(12);
  for (size_t r = 0; r < 4; ++r) {
    for (size_t i = 0; i < 3; ++i) columns[i * 4 + r] = rows[r * 3 + i];
  }
  const Buffer dy(DType::kF32, {1, 1, 1, 1});
  ExpectClose(
      RunStatistic(*context_, Statistic::kLogSumExp, Buffer(DType::kF32, rows), dy, {4, 3, 1}, 1).y,
      expected, 1e-6);
  ExpectClose(
      RunStatistic(*context_, Statistic::kLogSumExp, Buffer(DType::kF32, columns), dy, {1, 3, 4}, 1)
          .y,
      expected, 1e-6);
}

// With a mean that is large against the deviation, so that sums of squares would cancel.
TEST_F(StatisticTest, Variance) {
  for (DType dtype : kFloats) {
    for (const Sizes& sizes : kSizes) {
      std::vector<double> values = Buffer::Normal(dtype, sizes.numel(), 1).values();
      for (double& value : values) value += dtype == DType::kF64 || dtype == DType::kF32 ? 1e3 : 4;
      const Buffer x(dtype, values);
      const Buffer dy = Buffer::Normal(dtype, sizes.outer * sizes.inner, 2);
      const double scale = 1.0 / static_cast<double>(sizes.reduce);
      const StatisticRun got = RunStatistic(*context_, Statistic::kVariance, x, dy, sizes, scale);
      std::vector<double> y(got.y.size()), mean(got.y.size()), dx(got.dx.size());
      const std::vector<double> dys = dy.values();
      ForResults(sizes, x.values(), [&](size_t at, const std::vector<double>& each) {
        for (const double value : each) mean[at] += value * scale;
        for (const double value : each) y[at] += (value - mean[at]) * (value - mean[at]) * scale;
        for (int64_t r = 0; r < sizes.reduce; ++r) {
          const auto o = static_cast<int64_t>(at) / sizes.inner;
          const auto i = static_cast<int64_t>(at) % sizes.inner;
          dx[sizes.At(o, r, i)] = 2 * scale * (each[static_cast<size_t>(r)] - mean[at]) * dys[at];
        }
      });
      ExpectClose(got.y, y, Tolerance(dtype, ErrorKind::kReduction));
      ExpectClose(got.stat, mean, Tolerance(ComputeDType(dtype), ErrorKind::kReduction));
      // The mean is rounded to f32: an error of 1000 / 2^25 in each difference.
      ExpectClose(got.dx, dx,
                  dtype == DType::kF64 ? 1e-11 : 20 * Tolerance(dtype, ErrorKind::kReduction));
    }
  }
}

TEST_F(StatisticTest, CumSum) {
  for (DType dtype : kFloats) {
    for (const Sizes& sizes : kSizes) {
      for (const bool reverse : {false, true}) {
        const Buffer x = Buffer::Normal(dtype, sizes.numel(), 1);
        Buffer y(dtype, sizes.numel());
        context_->kernels().cum_sum(*context_, {dtype, x.data(), y.data(), sizes.outer,
                                                sizes.reduce, sizes.inner, reverse});
        std::vector<double> expected = x.values();
        for (int64_t o = 0; o < sizes.outer; ++o) {
          for (int64_t i = 0; i < sizes.inner; ++i) {
            long double sum = 0;
            for (int64_t k = 0; k < sizes.reduce; ++k) {
              const size_t at = sizes.At(o, reverse ? sizes.reduce - 1 - k : k, i);
              sum += static_cast<long double>(expected[at]);
              expected[at] = static_cast<double>(sum);
            }
          }
        }
        // A sum that has come back to nearly 0 has the error of the largest before it.
        double largest = 1;
        for (const double sum : expected) largest = std::max(largest, std::abs(sum));
        ExpectClose(y.values(), expected, Tolerance(dtype, ErrorKind::kReduction),
                    dtype == DType::kF64 ? largest : 1);
      }
    }
  }
}

TEST_F(StatisticTest, GatherAndScatterAdd) {
  for (DType dtype : kFloats) {
    for (const Sizes& sizes : kSizes) {
      for (const bool repeated : {false, true}) {
        const int64_t count = 5;
        const Sizes result{sizes.outer, count, sizes.inner};
        // The same index for all, or one per element.
        const Sizes index_sizes = repeated ? Sizes{1, count, 1} : result;
        std::vector<double> index(static_cast<size_t>(index_sizes.numel()));
        for (size_t i = 0; i < index.size(); ++i) {
          index[i] = static_cast<double>((7 * i + 3) % static_cast<size_t>(sizes.reduce));
        }
        const Buffer ids(DType::kI64, index), x = Buffer::Normal(dtype, sizes.numel(), 1);
        DimIndex args{.values = static_cast<const int64_t*>(ids.data()),
                      .strides = {repeated ? 0 : count * sizes.inner, repeated ? 1 : sizes.inner,
                                  repeated ? 0 : 1},
                      .outer = sizes.outer,
                      .count = count,
                      .size = sizes.reduce,
                      .inner = sizes.inner};
        Buffer y(dtype, result.numel()), back(dtype, sizes.numel());
        context_->kernels().gather(*context_, {dtype, x.data(), y.data(), args});
        context_->kernels().scatter_add(*context_, {dtype, y.data(), back.data(), args});
        std::vector<double> chosen(static_cast<size_t>(result.numel()));
        std::vector<double> sums(static_cast<size_t>(sizes.numel()));
        const std::vector<double> xs = x.values();
        for (int64_t o = 0; o < sizes.outer; ++o) {
          for (int64_t j = 0; j < count; ++j) {
            for (int64_t i = 0; i < sizes.inner; ++i) {
              const size_t at = repeated ? static_cast<size_t>(j) : result.At(o, j, i);
              const size_t from = sizes.At(o, static_cast<int64_t>(index[at]), i);
              chosen[result.At(o, j, i)] = xs[from];
              sums[from] += xs[from];
            }
          }
        }
        EXPECT_EQ(y.values(), chosen);
        ExpectClose(back.values(), sums, Tolerance(dtype, ErrorKind::kElementwise));
      }
    }
  }
}

}  // namespace statistic_test
}  // namespace apogee
