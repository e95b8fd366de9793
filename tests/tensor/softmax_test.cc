// SPDX-License-Identifier: Apache-2.0

// Softmax and cross entropy, which share their hazards: large values, -inf and NaN.
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee {
namespace softmax_test {

struct Sizes {
  int64_t rows, cols;
};
constexpr Sizes kSizes[] = {{0, 5},  {1, 1},    {1, 17},  {33, 17},
                            {5, 64}, {3, 5000}, {7, 129}, {2, 17003}};

// Targets where the kernels read them.
Buffer Targets(const std::vector<int64_t>& targets) {
  return Buffer(DType::kI64, std::vector<double>(targets.begin(), targets.end()));
}
const int64_t* Ids(const Buffer& targets) { return static_cast<const int64_t*>(targets.data()); }

std::vector<double> Softmax(const double* x, int64_t cols) {
  double max = -INFINITY;
  for (int64_t i = 0; i < cols; ++i) max = std::max(max, x[i]);
  std::vector<double> y(x, x + cols);
  double sum = 0;
  for (double& value : y) sum += value = std::exp(value - max);
  for (double& value : y) value /= sum;
  return y;
}

TEST(Softmax, MatchesReference) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (DType dtype : kFloats) {
    for (auto [rows, cols] : kSizes) {
      const Buffer x = Buffer::Normal(dtype, rows * cols, 1, 3);
      const Buffer dy = Buffer::Normal(dtype, rows * cols, 2);
      Buffer y(dtype, rows * cols), dx(dtype, rows * cols);
      context->kernels().softmax_forward(*context, {dtype, x.data(), y.data(), rows, cols});
      context->kernels().softmax_backward(*context,
                                          {dtype, y.data(), dy.data(), dx.data(), rows, cols});
      const std::vector<double> xs = x.values(), ys = y.values(), dys = dy.values();
      std::vector<double> expected_y, expected_dx;
      for (int64_t r = 0; r < rows; ++r) {
        const std::vector<double> row = Softmax(xs.data() + r * cols, cols);
        expected_y.insert(expected_y.end(), row.begin(), row.end());
        double dot = 0;
        for (int64_t i = r * cols; i < (r + 1) * cols; ++i) {
          dot += ys[static_cast<size_t>(i)] * dys[static_cast<size_t>(i)];
        }
        for (int64_t i = r * cols; i < (r + 1) * cols; ++i) {
          expected_dx.push_back(ys[static_cast<size_t>(i)] * (dys[static_cast<size_t>(i)] - dot));
        }
      }
      const double tolerance = Tolerance(dtype, ErrorKind::kReduction);
      ExpectClose(y.values(), expected_y, tolerance, 1e-2);
      ExpectClose(dx.values(), expected_dx, tolerance, 0.1);
    }
  }
}

TEST(Softmax, LargeMaskedAndNaNRows) {
  const ContextPtr context = TestContext();
  for (DType dtype : kFloats) {
    const Buffer x(dtype, {60000, 60000, -60000, -INFINITY,             // large
                           -INFINITY, 0, -INFINITY, -INFINITY,          // masked
                           -INFINITY, -INFINITY, -INFINITY, -INFINITY,  // fully masked
                           1, NAN, 2, 3});
    Buffer y(dtype, 16);
    context->kernels().softmax_forward(*context, {dtype, x.data(), y.data(), 4, 4});
    ExpectClose(y.values(), {0.5, 0.5, 0, 0, 0, 1, 0, 0, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN},
                0);
  }
}

TEST(CrossEntropy, MatchesReference) {
  const ContextPtr context = TestContext({.num_threads = 2});
  constexpr int64_t kIgnore = -100;
  for (DType dtype : kFloats) {
    for (auto [rows, cols] : kSizes) {
      const DType statistic = StatisticDType(dtype);
      Buffer logits = Buffer::Normal(dtype, rows * cols, 1, 3);
      Buffer lse(statistic, rows), loss(statistic, rows);
      std::vector<int64_t> targets;
      for (int64_t r = 0; r < rows; ++r) targets.push_back(r % 4 == 3 ? kIgnore : r * 7 % cols);
      const Buffer ids = Targets(targets);
      context->kernels().cross_entropy_forward(
          *context, {dtype, logits.data(), Ids(ids), kIgnore, lse.data(), loss.data(), rows, cols});
      const std::vector<double> xs = logits.values();
      std::vector<double> expected_lse, expected_loss, expected_grad;
      for (int64_t r = 0; r < rows; ++r) {
        const double* x = xs.data() + r * cols;
        const int64_t target = targets[static_cast<size_t>(r)];
        double sum = 0;
        for (int64_t i = 0; i < cols; ++i) sum += std::exp(x[i]);
        expected_lse.push_back(std::log(sum));
        expected_loss.push_back(target == kIgnore ? 0 : std::log(sum) - x[target]);
        for (int64_t i = 0; i < cols; ++i) {
          const double gradient = std::exp(x[i]) / sum - (i == target ? 1 : 0);
          expected_grad.push_back(target == kIgnore ? 0 : 0.25 * gradient);
        }
      }
      const double tolerance = Tolerance(statistic, ErrorKind::kReduction);
      ExpectClose(lse.values(), expected_lse, tolerance);
      ExpectClose(loss.values(), expected_loss, tolerance);
      // In place: dlogits is logits.
      context->kernels().cross_entropy_backward(
          *context,
          {dtype, logits.data(), Ids(ids), kIgnore, lse.data(), logits.data(), rows, cols, 4});
      ExpectClose(logits.values(), expected_grad, Tolerance(dtype, ErrorKind::kReduction), 1e-2);
      // The loss' gradient is a number of the device.
      Buffer again(dtype, xs), grad(statistic, std::vector<double>{2});
      context->kernels().cross_entropy_backward(*context, {dtype,
                                                           again.data(),
                                                           Ids(ids),
                                                           kIgnore,
                                                           lse.data(),
                                                           again.data(),
                                                           rows,
                                                           cols,
                                                           8,
                                                           0,
                                                           0,
                                                           {grad.data(), statistic}});
      EXPECT_EQ(again.values(), logits.values());
    }
  }
}

// Columns cut into parts with padding behind each row, one part without columns.
TEST(CrossEntropy, Parts) {
  const ContextPtr context = TestContext({.num_threads = 2});
  constexpr int64_t kIgnore = -100, kPadding = 3;
  struct Part {
    int64_t first, cols;
  };
  for (DType dtype : kFloats) {
    for (auto [rows, cols] : kSizes) {
      const DType stat = StatisticDType(dtype);
      const double tolerance = Tolerance(stat, ErrorKind::kReduction);
      const Buffer logits = Buffer::Normal(dtype, rows * cols, 1, 3);
      std::vector<int64_t> targets;
      for (int64_t r = 0; r < rows; ++r) targets.push_back(r % 4 == 3 ? kIgnore : r * 7 % cols);
      const Buffer ids = Targets(targets);
      const std::vector<double> xs = logits.values();
      std::vector<double> whole_lse, whole_loss, target_logits(static_cast<size_t>(rows), 0.0);
      for (int64_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (int64_t i = 0; i < cols; ++i) sum += std::exp(xs[static_cast<size_t>(r * cols + i)]);
        const int64_t target = targets[static_cast<size_t>(r)];
        whole_lse.push_back(std::log(sum));
        const double at_target = target == kIgnore ? 0 : xs[static_cast<size_t>(r * cols + target)];
        whole_loss.push_back(target == kIgnore ? 0 : std::log(sum) - at_target);
      }
      const Buffer lse(stat, whole_lse);
      std::vector<double> max(static_cast<size_t>(rows), -INFINITY), sums(max.size(), 0.0);
      std::vector<std::vector<double>> part_lses;
      for (auto [first, count] :
           {Part{0, cols / 2}, Part{cols / 2, cols - cols / 2}, Part{cols, 0}}) {
        const int64_t stride = count + kPadding;
        std::vector<double> values(static_cast<size_t>(rows * stride), 100.0), expected_grad;
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t i = 0; i < stride; ++i) {
            double& value = values[static_cast<size_t>(r * stride + i)];
            if (i < count) value = xs[static_cast<size_t>(r * cols + first + i)];
            const int64_t target = targets[static_cast<size_t>(r)];
            const double gradient =
                std::exp(value - whole_lse[static_cast<size_t>(r)]) - (first + i == target ? 1 : 0);
            expected_grad.push_back(target == kIgnore || i >= count ? 0 : 0.25 * gradient);
          }
        }
        Buffer part(dtype, values), part_lse(stat, rows), part_target(stat, rows);
        context->kernels().cross_entropy_part_forward(
            *context, {dtype, part.data(), Ids(ids), part_lse.data(), part_target.data(), rows,
                       count, first, kPadding});
        part_lses.push_back(part_lse.values());
        for (size_t r = 0; r < max.size(); ++r) {
          max[r] = std::max(max[r], part_lses.back()[r]);
          target_logits[r] += part_target.values()[r];
        }
        context->kernels().cross_entropy_backward(
            *context, {dtype, part.data(), Ids(ids), kIgnore, lse.data(), part.data(), rows, count,
                       4, first, kPadding});
        ExpectClose(part.values(), expected_grad, Tolerance(dtype, ErrorKind::kReduction), 1e-2);
      }
      for (const std::vector<double>& part_lse : part_lses) {
        const Buffer from(stat, part_lse), largest(stat, max);
        Buffer terms(stat, rows);
        context->kernels().cross_entropy_part_sums(
            *context, {stat, from.data(), largest.data(), terms.data(), rows});
        for (size_t r = 0; r < sums.size(); ++r) sums[r] += terms.values()[r];
      }
      const Buffer largest(stat, max), total(stat, sums), picked(stat, target_logits);
      Buffer joined(stat, rows), loss(stat, rows);
      context->kernels().cross_entropy_part_join(
          *context, {stat, largest.data(), total.data(), picked.data(), Ids(ids), kIgnore,
                     joined.data(), loss.data(), rows});
      ExpectClose(joined.values(), whole_lse, tolerance);
      ExpectClose(loss.values(), whole_loss, tolerance);
    }
  }
}

TEST(CrossEntropy, LargeMaskedAndNaNRows) {
  const ContextPtr context = TestContext();
  // Longer than the chunks in which a row is read, with the values that matter at its end.
  const int64_t cols = 10000;
  for (DType dtype : kFloats) {
    std::vector<double> x(static_cast<size_t>(4 * cols), -INFINITY);
    const auto at = [&](int64_t row, int64_t col) -> double& {
      return x[static_cast<size_t>(row * cols + col)];
    };
    at(0, cols - 1) = -500;  // all else masked
    at(1, 0) = 50000;
    at(1, cols - 1) = 50000;
    at(3, 17) = NAN;  // row 2 is fully masked
    const Buffer logits(dtype, x);
    const Buffer ids = Targets({cols - 1, 0, 0, 0});
    Buffer lse(StatisticDType(dtype), 4), loss(StatisticDType(dtype), 4);
    context->kernels().cross_entropy_forward(
        *context, {dtype, logits.data(), Ids(ids), -1, lse.data(), loss.data(), 4, cols});
    // lse - 50000 keeps few digits in f32.
    ExpectClose(loss.values(), {0, std::log(2), NAN, NAN}, dtype == DType::kF64 ? 1e-10 : 5e-3);
  }
}

TEST(Softmax, SameBitsForAnyNumberOfThreads) {
  const int64_t rows = 301, cols = 401;
  for (DType dtype : kFloats) {
    const Buffer x = Buffer::Normal(dtype, rows * cols, 1);
    const Buffer ids = Targets(std::vector<int64_t>(static_cast<size_t>(rows), 3));
    ExpectSameBits([&](const DeviceContext& context) {
      Buffer y(dtype, rows * cols);
      context.kernels().softmax_forward(context, {dtype, x.data(), y.data(), rows, cols});
      return y.bytes();
    });
    ExpectSameBits([&](const DeviceContext& context) {
      Buffer lse(StatisticDType(dtype), rows), loss(StatisticDType(dtype), rows);
      context.kernels().cross_entropy_forward(
          context, {dtype, x.data(), Ids(ids), -1, lse.data(), loss.data(), rows, cols});
      return loss.bytes();
    });
  }
}

}  // namespace softmax_test
}  // namespace apogee
