// SPDX-License-Identifier: Apache-2.0

// Matrix products against a naive f64 product: layouts, sizes, dtypes, scales, threads.
#include <cmath>
#include <tuple>
#include <vector>

#include "apogee/tests/support/buffer.h"

namespace apogee {
namespace matmul_test {

// Relative to the magnitude of the sum's terms.
double Tolerance(DType dtype, DType c_dtype, int64_t k) {
  const auto epsilon = [](DType t) {
    return t == DType::kF64   ? 0x1p-53
           : t == DType::kF32 ? 0x1p-24
           : t == DType::kF16 ? 0x1p-11
                              : 0x1p-8;
  };
  const double compute = dtype == DType::kF64 ? 0x1p-53 : 0x1p-24;
  return 2 * epsilon(c_dtype) + compute * static_cast<double>(k + 4);
}

struct Problem {
  DType dtype = DType::kF32, c_dtype = DType::kF32, bias_dtype = DType::kF32;
  int64_t batch = 1, m = 1, n = 1, k = 1;
  bool a_trans = false, b_trans = false, bias = false;
  double alpha = 1, beta = 0;
  int64_t pad = 0;       // extra elements per stored row and matrix
  bool share_b = false;  // batch stride 0
  int threads = 1;
};

// Runs the kernel twice, compares the bits of the runs and the values with the naive product.
void ExpectProduct(const Problem& p) {
  SCOPED_TRACE(::testing::Message()
               << DTypeName(p.dtype) << " -> " << DTypeName(p.c_dtype) << " batch " << p.batch
               << " m " << p.m << " n " << p.n << " k " << p.k << " trans " << p.a_trans
               << p.b_trans << " bias " << p.bias << " alpha " << p.alpha << " beta " << p.beta
               << " pad " << p.pad << " threads " << p.threads);
  const ContextPtr context = TestContext({.num_threads = p.threads});
  const int64_t lda = (p.a_trans ? p.m : p.k) + p.pad, ldb = (p.b_trans ? p.k : p.n) + p.pad;
  const int64_t ldc = p.n + p.pad;
  const int64_t a_batch = (p.a_trans ? p.k : p.m) * lda + p.pad;
  const int64_t b_size = (p.b_trans ? p.n : p.k) * ldb + p.pad;
  const int64_t c_batch = p.m * ldc + p.pad;
  const Buffer a = Buffer::Normal(p.dtype, p.batch * a_batch, 7);
  const Buffer b = Buffer::Normal(p.dtype, p.batch * b_size, 8);
  const Buffer bias = Buffer::Normal(p.bias_dtype, p.n, 9);
  std::vector<double> before = Buffer::Normal(p.c_dtype, p.batch * c_batch, 10).values();
  // What beta == 0 overwrites must not matter.
  if (p.beta == 0 && p.m * p.n > 0) before[0] = NAN;
  Buffer result(p.c_dtype, before), again(p.c_dtype, before);
  MatMulArgs args{.dtype = p.dtype,
                  .c_dtype = p.c_dtype,
                  .bias_dtype = p.bias_dtype,
                  .a = a.data(),
                  .b = b.data(),
                  .c = result.data(),
                  .bias = p.bias ? bias.data() : nullptr,
                  .batch = p.batch,
                  .m = p.m,
                  .n = p.n,
                  .k = p.k,
                  .a_trans = p.a_trans,
                  .b_trans = p.b_trans,
                  .lda = lda,
                  .ldb = ldb,
                  .ldc = ldc,
                  .a_batch = a_batch,
                  .b_batch = p.share_b ? 0 : b_size,
                  .c_batch = c_batch,
                  .alpha = p.alpha,
                  .beta = p.beta};
  context->kernels().matmul(*context, args);
  args.c = again.data();
  context->kernels().matmul(*context, args);
  EXPECT_EQ(result.bytes(), again.bytes());
  EXPECT_EQ(context->ledger().live_total_bytes(), 0);

  const double tolerance = Tolerance(p.dtype, p.c_dtype, p.k);
  const std::vector<double> a_values = a.values(), b_values = b.values();
  const std::vector<double> bias_values = bias.values(), c = result.values();
  for (int64_t z = 0; z < p.batch; ++z) {
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < ldc; ++j) {
        const int64_t at = z * c_batch + i * ldc + j;
        if (j >= p.n) {  // between the rows: untouched
          ASSERT_EQ(c[at], before[at]) << i << "," << j;
          continue;
        }
        double sum = 0, magnitude = 0;
        for (int64_t x = 0; x < p.k; ++x) {
          const double term =
              a_values[z * a_batch + (p.a_trans ? x * lda + i : i * lda + x)] *
              b_values[(p.share_b ? 0 : z * b_size) + (p.b_trans ? j * ldb + x : x * ldb + j)];
          sum += term;
          magnitude += std::abs(term);
        }
        double expected = p.alpha * sum;
        magnitude *= std::abs(p.alpha);
        for (double term : {p.beta == 0 ? 0 : p.beta * before[at], p.bias ? bias_values[j] : 0}) {
          expected += term;
          magnitude += std::abs(term);
        }
        ASSERT_NEAR(c[at], expected, tolerance * magnitude) << z << ":" << i << "," << j;
      }
    }
  }
}

TEST(MatMulTest, EveryCombination) {
  for (DType dtype : kFloats) {
    for (DType c_dtype : {dtype, DType::kF32}) {
      for (int flags = 0; flags < 64; ++flags) {
        const bool scaled = (flags & 8) != 0;
        ExpectProduct({.dtype = dtype,
                       .c_dtype = c_dtype,
                       .bias_dtype = (flags & 32) ? DType::kF32 : dtype,
                       .m = 17,
                       .n = 33,
                       .k = 29,
                       .a_trans = (flags & 1) != 0,
                       .b_trans = (flags & 2) != 0,
                       .bias = (flags & 4) != 0,
                       .alpha = scaled ? -0.5 : 1.0,
                       .beta = (flags & 16) ? (scaled ? 0.25 : 1.0) : 0.0});
      }
    }
  }
}

TEST(MatMulTest, Sizes) {
  const std::tuple<int64_t, int64_t, int64_t> sizes[] = {
      {1, 1, 1},       {1, 40, 7}, {40, 1, 7}, {1, 1, 300}, {3, 5, 1},    {64, 64, 64},
      {130, 257, 260}, {0, 5, 3},  {5, 0, 3},  {5, 7, 0},   {1, 512, 64}, {300, 2, 513}};
  for (DType dtype : kFloats) {
    for (auto [m, n, k] : sizes) {
      for (int trans = 0; trans < 4; ++trans) {
        for (int threads : {1, 2}) {
          ExpectProduct({.dtype = dtype,
                         .c_dtype = dtype,
                         .bias_dtype = dtype,
                         .m = m,
                         .n = n,
                         .k = k,
                         .a_trans = (trans & 1) != 0,
                         .b_trans = (trans & 2) != 0,
                         .bias = true,
                         .threads = threads});
        }
      }
    }
  }
}

// Few rows of a and a large b, which have a path of their own on the CPU.
TEST(MatMulTest, FewRows) {
  for (const DType dtype : kFloats) {
    for (int64_t m = 1; m <= 9; ++m) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{259, 261}, {70, 1003}, {1100, 61}}) {
        const int flags = static_cast<int>(m + n);
        for (const bool b_trans : {false, true}) {
          ExpectProduct({.dtype = dtype,
                         .c_dtype = m % 3 == 0 ? DType::kF32 : dtype,
                         .bias_dtype = m % 4 == 0 ? DType::kF32 : dtype,
                         .m = m,
                         .n = n,
                         .k = k,
                         .b_trans = b_trans,
                         .bias = (flags & 1) != 0,
                         .alpha = (flags & 2) != 0 ? -0.5 : 1.0,
                         .beta = (flags & 4) != 0 ? 0.25 : 0.0,
                         .pad = m % 2 == 0 ? 3 : 0,
                         .threads = 1 + static_cast<int>(m % 3)});
        }
      }
    }
  }
}

TEST(MatMulTest, NothingToSumLeavesBetaCAndBias) {
  ExpectProduct({.m = 3, .n = 4, .k = 0, .beta = 0});
  ExpectProduct({.m = 3, .n = 4, .k = 0, .bias = true, .beta = 0.5});
}

TEST(MatMulTest, StridesAndBatches) {
  for (DType dtype : kFloats) {
    for (int trans = 0; trans < 4; ++trans) {
      for (bool share_b : {false, true}) {
        ExpectProduct({.dtype = dtype,
                       .c_dtype = dtype,
                       .bias_dtype = dtype,
                       .batch = 5,
                       .m = 18,
                       .n = 31,
                       .k = 20,
                       .a_trans = (trans & 1) != 0,
                       .b_trans = (trans & 2) != 0,
                       .bias = true,
                       .pad = 3,
                       .share_b = share_b,
                       .threads = 2});
      }
    }
  }
}

TEST(MatMulTest, MixedOutputs) {
  for (DType dtype : kFloats) {
    for (DType c_dtype : kFloats) {
      ExpectProduct({.dtype = dtype,
                     .c_dtype = c_dtype,
                     .bias_dtype = DType::kF64,
                     .m = 9,
                     .n = 21,
                     .k = 14,
                     .bias = true,
                     .beta = 2});
    }
  }
}

}  // namespace matmul_test
}  // namespace apogee
