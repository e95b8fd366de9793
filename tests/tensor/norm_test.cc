// SPDX-License-Identifier: Apache-2.0

// Layer norm and RMS norm, forward and backward, against double.
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee {
namespace norm_test {

constexpr double kEps = 1e-5;

struct Sizes {
  int64_t rows, cols;
};
constexpr Sizes kSizes[] = {{0, 4},     {1, 1},    {1, 17},   {33, 17},   {65, 384}, {200, 129},
                            {19, 1600}, {9, 4096}, {3, 2051}, {10, 8808}, {9, 9001}};

struct Result {
  std::vector<double> y, mean, rstd, dx, dweight, dbias;
};

Result Reference(bool rms, const std::vector<double>& x, std::vector<double> weight, double offset,
                 const std::vector<double>& bias, const std::vector<double>& dy, int64_t rows,
                 int64_t cols) {
  const size_t n = static_cast<size_t>(cols);
  for (double& factor : weight) factor += offset;
  Result result;
  result.dweight.assign(n, 0);
  result.dbias.assign(n, 0);
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    const double* row = x.data() + r * n;
    const double* grad = dy.data() + r * n;
    double mean = 0, square = 0;
    for (size_t i = 0; i < n; ++i) mean += rms ? 0 : row[i] / static_cast<double>(cols);
    for (size_t i = 0; i < n; ++i) square += (row[i] - mean) * (row[i] - mean);
    const double rstd = 1 / std::sqrt(square / static_cast<double>(cols) + kEps);
    double sum = 0, dot = 0;
    for (size_t i = 0; i < n; ++i) {
      const double normalised = (row[i] - mean) * rstd;
      result.y.push_back(normalised * weight[i] + (rms ? 0 : bias[i]));
      result.dweight[i] += grad[i] * normalised;
      result.dbias[i] += grad[i];
      sum += rms ? 0 : grad[i] * weight[i] / static_cast<double>(cols);
      dot += grad[i] * weight[i] * normalised / static_cast<double>(cols);
    }
    for (size_t i = 0; i < n; ++i) {
      result.dx.push_back(rstd * (grad[i] * weight[i] - sum - (row[i] - mean) * rstd * dot));
    }
    result.mean.push_back(mean);
    result.rstd.push_back(rstd);
  }
  return result;
}

void CheckAllSizes(double offset) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (DType dtype : kFloats) {
    for (bool rms : {false, true}) {
      for (auto [rows, cols] : kSizes) {
        SCOPED_TRACE(::testing::Message()
                     << DTypeName(dtype) << (rms ? " rms " : " layer ") << rows << "x" << cols);
        const DType statistic = StatisticDType(dtype);
        const Buffer x = Buffer::Normal(dtype, rows * cols, 1);
        const Buffer weight = Buffer::Normal(dtype, cols, 2);
        const Buffer bias = Buffer::Normal(dtype, cols, 3);
        const Buffer dy = Buffer::Normal(dtype, rows * cols, 4);
        Buffer y(dtype, rows * cols), dx(dtype, rows * cols);
        Buffer mean(statistic, rows), rstd(statistic, rows);
        Buffer dweight(statistic, cols), dbias(statistic, cols);
        context->kernels().norm_forward(
            *context, {dtype, rms, x.data(), weight.data(), rms ? nullptr : bias.data(), y.data(),
                       rms ? nullptr : mean.data(), rstd.data(), rows, cols, kEps, offset});
        context->kernels().norm_backward(
            *context, {dtype, statistic, rms, x.data(), weight.data(), rms ? nullptr : mean.data(),
                       rstd.data(), dy.data(), dx.data(), dweight.data(),
                       rms ? nullptr : dbias.data(), rows, cols, offset});
        const Result expected = Reference(rms, x.values(), weight.values(), offset, bias.values(),
                                          dy.values(), rows, cols);
        const double tolerance = Tolerance(dtype, ErrorKind::kReduction);
        const double exact = Tolerance(statistic, ErrorKind::kReduction);
        const double gradient_floor = std::sqrt(static_cast<double>(rows) + 1);
        ExpectClose(rstd.values(), expected.rstd, exact);
        ExpectClose(y.values(), expected.y, tolerance);
        // A single column is normalised to nothing, whose gradient is all rounding times rstd.
        ExpectClose(dx.values(), expected.dx, tolerance, cols == 1 ? 1 / std::sqrt(kEps) : 1);
        ExpectClose(dweight.values(), expected.dweight, exact, gradient_floor);
        if (rms) continue;
        ExpectClose(mean.values(), expected.mean, exact);
        ExpectClose(dbias.values(), expected.dbias, exact, gradient_floor);
      }
    }
  }
}

TEST(Norm, MatchesReference) { CheckAllSizes(-0.0); }

TEST(Norm, TheOffsetIsAddedToTheWeight) { CheckAllSizes(1.25); }

// A weight of -0 has its sign in y.
TEST(Norm, NoOffsetKeepsSignsOfZeros) {
  const ContextPtr context = TestContext();
  const Buffer x(DType::kF32, {1, 2}), weight(DType::kF32, {-0.0, 0.0});
  Buffer y(DType::kF32, 2), rstd(DType::kF32, 1);
  context->kernels().norm_forward(*context, {DType::kF32, true, x.data(), weight.data(), nullptr,
                                             y.data(), nullptr, rstd.data(), 1, 2, kEps});
  EXPECT_TRUE(std::signbit(y.values()[0]));
  EXPECT_FALSE(std::signbit(y.values()[1]));
}

TEST(Norm, AnyGradientMayBeLeftOut) {
  const ContextPtr context = TestContext();
  const int64_t rows = 20, cols = 33;
  const DType f32 = DType::kF32;
  const Buffer x = Buffer::Normal(f32, rows * cols, 1), dy = Buffer::Normal(f32, rows * cols, 2);
  const Buffer weight = Buffer::Normal(f32, cols, 3);
  const Buffer mean = Buffer::Normal(f32, rows, 4, 0.1);
  const Buffer rstd(f32, std::vector<double>(static_cast<size_t>(rows), 1.25));
  std::vector<std::vector<unsigned char>> all;
  for (int mask = 7; mask >= 0; --mask) {
    Buffer dx(f32, rows * cols), dweight(f32, cols), dbias(f32, cols);
    Buffer* outputs[] = {&dx, &dweight, &dbias};
    void* pointers[3];
    for (int i = 0; i < 3; ++i) pointers[i] = (mask >> i & 1) != 0 ? outputs[i]->data() : nullptr;
    context->kernels().norm_backward(
        *context, {f32, f32, false, x.data(), weight.data(), mean.data(), rstd.data(), dy.data(),
                   pointers[0], pointers[1], pointers[2], rows, cols});
    if (mask == 7) all = {dx.bytes(), dweight.bytes(), dbias.bytes()};
    for (int i = 0; i < 3; ++i) {
      if (pointers[i] != nullptr) {
        EXPECT_EQ(outputs[i]->bytes(), all[static_cast<size_t>(i)]) << mask;
      }
    }
  }
}

TEST(Norm, RowsFarFromZeroKeepTheirVariance) {
  const ContextPtr context = TestContext();
  std::vector<double> values;
  for (int i = 0; i < 256; ++i) values.push_back(10000 + i % 2);
  const Buffer x(DType::kF32, values), weight(DType::kF32, std::vector<double>(256, 1.0));
  Buffer y(DType::kF32, 256), mean(DType::kF32, 1), rstd(DType::kF32, 1);
  context->kernels().norm_forward(*context, {DType::kF32, false, x.data(), weight.data(), nullptr,
                                             y.data(), mean.data(), rstd.data(), 1, 256, 0});
  EXPECT_NEAR(rstd.values()[0], 2, 1e-3);
  EXPECT_NEAR(y.values()[1], 1, 1e-3);
}

TEST(Norm, NaNStaysInItsRow) {
  const ContextPtr context = TestContext();
  const Buffer x(DType::kF32, {1, NAN, 3, 1, 2, 3}), weight(DType::kF32, {1, 1, 1});
  Buffer y(DType::kF32, 6), mean(DType::kF32, 2), rstd(DType::kF32, 2);
  context->kernels().norm_forward(
      *context, {DType::kF32, false, x.data(), weight.data(), weight.data(), y.data(), mean.data(),
                 rstd.data(), 2, 3, kEps});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(std::isnan(y.values()[i]));
    EXPECT_FALSE(std::isnan(y.values()[3 + i]));
  }
}

TEST(Norm, SameBitsForAnyNumberOfThreads) {
  const int64_t rows = 1001, cols = 129;
  for (DType dtype : kFloats) {
    const DType statistic = StatisticDType(dtype);
    const Buffer x = Buffer::Normal(dtype, rows * cols, 1),
                 dy = Buffer::Normal(dtype, rows * cols, 2);
    const Buffer weight = Buffer::Normal(dtype, cols, 3), mean = Buffer::Normal(statistic, rows, 4);
    const Buffer rstd = Buffer::Normal(statistic, rows, 5);
    ExpectSameBits([&](const DeviceContext& context) {
      Buffer dx(dtype, rows * cols), dweight(dtype, cols), dbias(dtype, cols);
      context.kernels().norm_backward(
          context, {dtype, dtype, false, x.data(), weight.data(), mean.data(), rstd.data(),
                    dy.data(), dx.data(), dweight.data(), dbias.data(), rows, cols});
      std::vector<unsigned char> bytes = dx.bytes();
      for (const Buffer* more : {&dweight, &dbias}) {
        bytes.insert(bytes.end(), more->bytes().begin(), more->bytes().end());
      }
      return bytes;
    });
  }
}

}  // namespace norm_test
}  // namespace apogee
