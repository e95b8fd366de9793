// SPDX-License-Identifier: Apache-2.0

// Embedding lookup and its gradient.
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee {
namespace embedding_test {

std::vector<double> Ids(int64_t n, int64_t vocab) {
  std::vector<double> ids;
  // Squares repeat some ids often and leave others out.
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<double>(i * i % vocab));
  return ids;
}

const int64_t* Data(const Buffer& ids) { return static_cast<const int64_t*>(ids.data()); }

struct Sizes {
  int64_t n, dim, vocab;
};
constexpr Sizes kSizes[] = {{0, 4, 3},     {1, 1, 1},      {17, 17, 5},
                            {33, 17, 101}, {100, 700, 13}, {70, 64, 3000}};

TEST(Embedding, MatchesReference) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (DType dtype : kFloats) {
    for (DType grad_dtype : {dtype, StatisticDType(dtype)}) {
      for (auto [n, dim, vocab] : kSizes) {
        const Buffer ids(DType::kI64, Ids(n, vocab));
        const Buffer weight = Buffer::Normal(dtype, vocab * dim, 1);
        const Buffer dy = Buffer::Normal(dtype, n * dim, 2);
        Buffer y(dtype, n * dim), dweight(grad_dtype, vocab * dim);
        context->kernels().embedding_forward(
            *context, {dtype, Data(ids), weight.data(), y.data(), n, dim, vocab});
        context->kernels().embedding_backward(
            *context, {dtype, grad_dtype, Data(ids), dy.data(), dweight.data(), n, dim, vocab});
        const std::vector<double> rows = ids.values(), weights = weight.values(), dys = dy.values();
        std::vector<double> expected_y(dys.size()), expected_grad(weights.size(), 0.0);
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t j = 0; j < dim; ++j) {
            const int64_t row = static_cast<int64_t>(rows[static_cast<size_t>(i)]);
            const size_t at = static_cast<size_t>(row * dim + j);
            expected_y[static_cast<size_t>(i * dim + j)] = weights[at];
            expected_grad[at] += dys[static_cast<size_t>(i * dim + j)];
          }
        }
        ExpectClose(y.values(), expected_y, Tolerance(dtype, ErrorKind::kCopy));
        ExpectClose(dweight.values(), expected_grad, Tolerance(grad_dtype, ErrorKind::kReduction),
                    2);
      }
    }
  }
}

TEST(Embedding, PaddingAddsNothingToTheGradient) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (DType dtype : kFloats) {
    for (auto [n, dim, vocab] : kSizes) {
      // NaN where the padding id is looked up: it must reach nothing.
      const int64_t padding = 4 % vocab;
      const Buffer ids(DType::kI64, Ids(n, vocab));
      std::vector<double> grads = Buffer::Normal(dtype, n * dim, 2).values(), without = grads;
      const std::vector<double> rows = ids.values();
      for (size_t i = 0; i < grads.size(); ++i) {
        if (rows[i / static_cast<size_t>(dim)] != static_cast<double>(padding)) continue;
        grads[i] = NAN;
        without[i] = 0;
      }
      const Buffer dy(dtype, grads), dy_without(dtype, without);
      Buffer dweight(dtype, vocab * dim), expected(dtype, vocab * dim);
      context->kernels().embedding_backward(*context, {dtype, dtype, Data(ids), dy.data(),
                                                       dweight.data(), n, dim, vocab, 0, padding});
      context->kernels().embedding_backward(
          *context, {dtype, dtype, Data(ids), dy_without.data(), expected.data(), n, dim, vocab});
      ExpectClose(dweight.values(), expected.values(), 0);
    }
  }
}

// A table cut into parts: their results add up to, and their gradients are rows of, the whole's.
TEST(Embedding, PartsOfTheTable) {
  const ContextPtr context = TestContext({.num_threads = 2});
  const int64_t n = 33, dim = 17, vocab = 101, padding = 49;
  const Buffer ids(DType::kI64, Ids(n, vocab));
  for (DType dtype : kFloats) {
    const Buffer weight = Buffer::Normal(dtype, vocab * dim, 1);
    const Buffer dy = Buffer::Normal(dtype, n * dim, 2);
    Buffer whole(dtype, n * dim), grad(dtype, vocab * dim);
    context->kernels().embedding_forward(
        *context, {dtype, Data(ids), weight.data(), whole.data(), n, dim, vocab});
    context->kernels().embedding_backward(
        *context, {dtype, dtype, Data(ids), dy.data(), grad.data(), n, dim, vocab, 0, padding});
    std::vector<double> sum(static_cast<size_t>(n * dim), 0.0), rows;
    for (auto [first, count] : {std::pair<int64_t, int64_t>{0, 40}, {40, 60}, {100, 1}}) {
      const std::vector<double> all = weight.values();
      const Buffer part(dtype, {all.begin() + first * dim, all.begin() + (first + count) * dim});
      Buffer y(dtype, n * dim), part_grad(dtype, count * dim);
      context->kernels().embedding_forward(
          *context, {dtype, Data(ids), part.data(), y.data(), n, dim, count, first});
      context->kernels().embedding_backward(
          *context,
          {dtype, dtype, Data(ids), dy.data(), part_grad.data(), n, dim, count, first, padding});
      const std::vector<double> ys = y.values(), part_rows = part_grad.values();
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += ys[i];
      rows.insert(rows.end(), part_rows.begin(), part_rows.end());
    }
    ExpectClose(sum, whole.values(), 0);
    ExpectClose(rows, grad.values(), 0);
  }
}

TEST(Embedding, NaNReachesOnlyItsRow) {
  const ContextPtr context = TestContext();
  const Buffer ids(DType::kI64, {2, 0});
  const Buffer dy(DType::kF32, {NAN, 1});
  Buffer dweight(DType::kF32, 3);
  context->kernels().embedding_backward(
      *context, {DType::kF32, DType::kF32, Data(ids), dy.data(), dweight.data(), 2, 1, 3});
  ExpectClose(dweight.values(), {1, 0, NAN}, 0);
}

// In f32 the order of additions shows.
TEST(Embedding, AddsARowsTokensInTheirOrder) {
  const ContextPtr context = TestContext({.num_threads = 2});
  const int64_t n = 301, dim = 12, vocab = 3;
  const Buffer ids(DType::kI64, Ids(n, vocab));
  const Buffer dy = Buffer::Normal(DType::kF32, n * dim, 1, /*deviation=*/1000);
  Buffer dweight(DType::kF32, vocab * dim);
  context->kernels().embedding_backward(
      *context, {DType::kF32, DType::kF32, Data(ids), dy.data(), dweight.data(), n, dim, vocab});
  const std::vector<double> rows = ids.values(), dys = dy.values();
  std::vector<float> expected(static_cast<size_t>(vocab * dim), 0.0f);
  for (size_t i = 0; i < dys.size(); ++i) {
    const size_t row = static_cast<size_t>(rows[i / dim]);
    expected[row * dim + i % dim] += static_cast<float>(dys[i]);
  }
  ExpectClose(dweight.values(), {expected.begin(), expected.end()}, 0);
}

TEST(Embedding, GradientHasTheSameBitsForAnyNumberOfThreads) {
  const int64_t n = 1001, dim = 65, vocab = 1013;
  const Buffer ids(DType::kI64, Ids(n, vocab));
  for (DType dtype : kFloats) {
    const Buffer dy = Buffer::Normal(dtype, n * dim, 1);
    ExpectSameBits([&](const DeviceContext& context) {
      Buffer dweight(dtype, vocab * dim);
      context.kernels().embedding_backward(
          context, {dtype, dtype, Data(ids), dy.data(), dweight.data(), n, dim, vocab});
      return dweight.bytes();
    });
  }
}

}  // namespace embedding_test
}  // namespace apogee
