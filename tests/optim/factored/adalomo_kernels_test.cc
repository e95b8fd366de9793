// SPDX-License-Identifier: Apache-2.0

// AdaLomo's kernels on parts of a matrix: cut in the middle of rows, by columns, in segments that
// are shorter than a vector and out of order, matrices of a batch, an empty part.
#include <gtest/gtest.h>

#include <numeric>

#include "apogee/optim/core/kernels.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee::optim {
namespace adalomo_kernels_test {

constexpr double kEps = 1e-3, kLimit = 1.5, kClip = 0.5, kBeta2 = 0.75;

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts = {Layout(Shape{131, 520}), Layout(Shape{3, 70, 9}),
                                 Layout(Shape{2, 2, 3, 3}), Layout(Shape{1})};
  layouts.push_back(Layout(Shape{70, 301}, {.segments = {{1003, 15000}}}));
  layouts.push_back(Layout(Shape{5, 7}, {.segments = {}}));
  std::vector<Segment> columns, bits;
  for (int64_t row = 0; row < 70; ++row) columns.push_back({row * 512 + 128, 256});
  layouts.push_back(Layout(Shape{70, 512}, {.segments = columns}));
  for (int64_t i = 40; i > 0; --i) bits.push_back({i * 11, 1 + i % 9});
  layouts.push_back(Layout(Shape{23, 37}, {.segments = bits}));
  return layouts;
}

// One parameter, and what the kernels are to make of it, in f64.
struct Case {
  Case(const Layout& l, DType dtype, DType grad_dtype, bool factored, unsigned seed)
      : layout(l),
        factored(factored),
        rows(static_cast<size_t>(l.matrix().batch * l.matrix().rows)),
        cols(static_cast<size_t>(l.matrix().batch * l.matrix().cols)),
        weight(Buffer::Normal(dtype, l.local_numel() + 1, seed)),  // with an element of padding
        grad(Buffer::Normal(grad_dtype, l.local_numel() + 1, seed + 1)),
        moments(dtype, std::vector<double>(static_cast<size_t>(l.local_numel() + 1), 0.25)),
        working(DType::kBF16, std::vector<double>(static_cast<size_t>(l.local_numel() + 1), 7)),
        sums(dtype, std::vector<double>((factored ? rows + cols : 0) + 2, 7)),
        row_factors(rows),
        col_factors(cols),
        factors(DType::kF64, int64_t{0}),
        weight_sum(dtype, int64_t{0}),
        update_sum(dtype, int64_t{0}) {
    std::iota(row_factors.begin(), row_factors.end(), 1);
    for (size_t c = 0; c < cols; ++c) col_factors[c] = 1 / (2 + static_cast<double>(c));
    std::vector<double> both = row_factors;
    both.insert(both.end(), col_factors.begin(), col_factors.end());
    factors = Buffer(DType::kF64, both);
    // rms(w) = 0.5 and rms(u) = 4, as if they were.
    const auto numel = static_cast<double>(layout.logical_shape().numel());
    weight_sum = Buffer(dtype, std::vector<double>{0.25 * numel});
    update_sum = Buffer(dtype, std::vector<double>{16 * numel});
  }
  AdaLomoChunk Chunk() {
    AdaLomoChunk chunk{};
    chunk.weight = weight.data();
    chunk.grad = grad.data();
    chunk.grad_dtype = grad.dtype();
    chunk.working = working.data();
    chunk.working_dtype = working.dtype();
    chunk.n = layout.local_numel();
    chunk.layout = &layout;
    if (factored) {
      chunk.factors = static_cast<const double*>(factors.data());
    } else {
      chunk.exp_avg_sq = moments.data();
    }
    chunk.sums = sums.data();
    chunk.weight_sum = weight_sum.data();
    chunk.update_sum = update_sum.data();
    return chunk;
  }
  // Calls fn(local, row, column through the batch, gradient with scale and clipping applied).
  template <typename Fn>
  void ForEach(const Fn& fn) const {
    const std::vector<double> g = grad.values();
    const MatrixView m = layout.matrix();
    ForEachRowPiece(layout, [&](int64_t row, int64_t col, int64_t local, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        const double x = kClip * std::clamp(2 * g[static_cast<size_t>(local + i)], -kLimit, kLimit);
        fn(static_cast<size_t>(local + i), static_cast<size_t>(row),
           static_cast<size_t>(row / m.rows * m.cols + col + i), x);
      }
    });
  }
  double Update(size_t row, size_t col, double g) const {
    if (factored) return g * row_factors[row] * col_factors[col];
    return g / std::sqrt(kBeta2 * 0.25 + (1 - kBeta2) * (g * g + kEps));
  }

  Layout layout;
  bool factored;
  size_t rows, cols;
  Buffer weight, grad, moments, working, sums;
  std::vector<double> row_factors, col_factors;
  Buffer factors, weight_sum, update_sum;
};

std::vector<Case> Cases(DType dtype, DType grad_dtype) {
  std::vector<Case> cases;
  for (const Layout& layout : Layouts()) {
    for (const bool factored : {true, false}) {
      cases.emplace_back(layout, dtype, grad_dtype, factored, static_cast<unsigned>(cases.size()));
    }
  }
  return cases;
}

// The rate is 1 * rms(w) = 0.5, the decay 0.25, and the step 0.5 / (rms(u) / 1) = 0.125.
AdaLomoArgs Args(DType dtype, std::span<const AdaLomoChunk> chunks) {
  return {dtype, dtype, 2, kLimit, kClip, kEps, kBeta2, 1, 0.5, 0.1, 1, chunks};
}

class AdaLomoKernelsTest : public ::testing::TestWithParam<std::pair<DType, DType>> {
 protected:
  const DType dtype_ = GetParam().first;
  const ContextPtr context_ = TestContext({.num_threads = 2});
  const OptimKernels& kernels_ = OptimKernelsFor(*context_);
  std::vector<Case> cases_ = Cases(dtype_, GetParam().second);
  const double tolerance_ = Tolerance(dtype_, ErrorKind::kReduction);
};

TEST_P(AdaLomoKernelsTest, Sums) {
  std::vector<AdaLomoChunk> chunks;
  for (Case& c : cases_) chunks.push_back(c.Chunk());
  kernels_.adalomo_sums(*context_, Args(dtype_, chunks));
  for (size_t i = 0; i < cases_.size(); ++i) {
    const Case& c = cases_[i];
    const std::vector<double> w = c.weight.values();
    std::vector<double> expected(c.factored ? c.rows + c.cols : 0);
    double squares = 0;
    c.ForEach([&](size_t local, size_t row, size_t col, double g) {
      squares += w[local] * w[local];
      if (!c.factored) return;
      expected[row] += g * g + kEps;
      expected[c.rows + col] += g * g + kEps;
    });
    expected.push_back(squares);
    expected.push_back(7);  // what follows is left alone
    SCOPED_TRACE(i);
    ExpectClose(c.sums.values(), expected, tolerance_);
  }
}

// Against the equations, with what a step that is not stored and one that is leave behind.
TEST_P(AdaLomoKernelsTest, Factors) {
  const MatrixView m{.batch = 2, .rows = 300, .cols = 5};
  const size_t rows = 600, cols = 10;
  std::vector<double> sums, state(rows + cols, 0.5), expected, moments;
  for (size_t i = 0; i < rows + cols; ++i) {
    sums.push_back(1 + static_cast<double>(i % 7) / 4);
    moments.push_back(kBeta2 * 0.5 + (1 - kBeta2) * sums[i] / (i < rows ? 5 : 300));
  }
  for (size_t i = 0; i < rows + cols; ++i) {
    const size_t begin = i / 300 * 300;
    const double mean =
        i < rows
            ? std::accumulate(moments.begin() + static_cast<std::ptrdiff_t>(begin),
                              moments.begin() + static_cast<std::ptrdiff_t>(begin) + 300, 0.0) /
                  300
            : 1;
    expected.push_back(1 / std::sqrt(moments[i] / mean));
  }
  Buffer row(dtype_, std::vector<double>(rows, 0.5)),
      column(dtype_, std::vector<double>(cols, 0.5)), totals(dtype_, sums),
      factors(DType::kF64, std::vector<double>(rows + cols));
  const AdaLomoFactorChunk chunk{m, row.data(), column.data(), totals.data(),
                                 static_cast<double*>(factors.data())};
  for (const bool store : {false, true}) {
    kernels_.adalomo_factors(*context_, {dtype_, dtype_, kBeta2, store, nullptr, {&chunk, 1}});
    ExpectClose(factors.values(), expected, Tolerance(DType::kF64, ErrorKind::kReduction));
    const double tolerance = Tolerance(dtype_, ErrorKind::kElementwise);
    std::vector<double> all = row.values();
    for (const double value : column.values()) all.push_back(value);
    ExpectClose(all, store ? moments : std::vector<double>(rows + cols, 0.5), tolerance);
  }
}

TEST_P(AdaLomoKernelsTest, NormAndUpdate) {
  std::vector<AdaLomoChunk> chunks;
  for (Case& c : cases_) chunks.push_back(c.Chunk());
  kernels_.adalomo_update_norm(*context_, Args(dtype_, chunks));
  std::vector<std::vector<double>> before;
  for (size_t i = 0; i < cases_.size(); ++i) {
    before.push_back(cases_[i].weight.values());
    long double squares = 0;  // one f64 after the other would be less exact than the kernels
    cases_[i].ForEach([&](size_t, size_t row, size_t col, double g) {
      const double u = cases_[i].Update(row, col, g);
      squares += u * u;
    });
    const auto expected = static_cast<double>(squares);
    EXPECT_NEAR(cases_[i].sums.values()[0], expected, tolerance_ * expected) << "case " << i;
    EXPECT_EQ(cases_[i].moments.values(),
              std::vector<double>(before[i].size(), 0.25));  // nothing is stored
  }
  kernels_.adalomo(*context_, Args(dtype_, chunks));
  for (size_t i = 0; i < cases_.size(); ++i) {
    Case& c = cases_[i];
    std::vector<double> weights = before[i], moments(weights.size(), 0.25);
    c.ForEach([&](size_t local, size_t row, size_t col, double g) {
      weights[local] -= 0.25 * weights[local] + 0.125 * c.Update(row, col, g);
      if (!c.factored) moments[local] = kBeta2 * 0.25 + (1 - kBeta2) * (g * g + kEps);
    });
    SCOPED_TRACE(i);
    ExpectClose(c.weight.values(), weights, tolerance_);
    ExpectClose(c.moments.values(), moments, tolerance_);
    std::vector<double> working = Buffer(DType::kBF16, c.weight.values()).values();
    working.back() = 7;  // padding
    EXPECT_EQ(c.working.values(), working);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, AdaLomoKernelsTest,
                         ::testing::Values(std::pair(DType::kF64, DType::kF64),
                                           std::pair(DType::kF32, DType::kF32),
                                           std::pair(DType::kF32, DType::kBF16)));

}  // namespace adalomo_kernels_test
}  // namespace apogee::optim
