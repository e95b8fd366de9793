// SPDX-License-Identifier: Apache-2.0

// Matrix products that cuBLASLt refuses, in part or altogether: the same bits come another way.
#include <gtest/gtest.h>

#include <array>
#include <iterator>
#include <string>
#include <vector>

#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/cuda/cuda_context.h"
#include "apogee/tensor/cuda/runtime/padded_product.h"
#include "apogee/tensor/kernel_table.h"
#include "apogee/tensor/ops/matmul.h"
#include "apogee/tests/support/environment.h"

namespace apogee {
namespace refused_products_test {

using ::apogee::testing::Environment;

constexpr const char* kRefuses = "APOGEE_EMULATED_CUBLASLT_REFUSES";

// Multiples of 1/8 up to 1, so that sums of products are exact in f32 in any order.
std::vector<double> Eighths(int64_t n, int64_t seed) {
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) {
    values.push_back(static_cast<double>((i * 37 + seed * 11 + i * i % 13) % 17 - 8) / 8);
  }
  return values;
}

struct Case {
  DType dtype = DType::kBF16;
  int64_t batch = 1, m = 5, n = 7, k = 9;
  bool b_trans = false, bias = true;
  DType bias_dtype = DType::kBF16, out_dtype = DType::kBF16;
};

struct Outcome {
  std::vector<double> values;
  CudaProducts products;
};

// A batch has no bias.
Outcome Multiply(const Case& c, const ContextPtr& gpu = ValueOrThrow(CudaContext())) {
  const auto tensor = [&](int64_t rows, int64_t cols, bool trans, int64_t seed) {
    const int64_t first = trans ? cols : rows, second = trans ? rows : cols;
    const Shape shape = c.batch == 1 ? Shape({first, second}) : Shape({c.batch, first, second});
    return Tensor::FromVector(Eighths(shape.numel(), seed), shape, gpu, c.dtype);
  };
  const Tensor a = tensor(c.m, c.k, false, 1), b = tensor(c.k, c.n, c.b_trans, 2);
  Tensor bias;
  if (c.bias) bias = Tensor::FromVector(Eighths(c.n, 3), {c.n}, gpu, c.bias_dtype);
  const CudaProducts before = CudaProductsOf(gpu);
  const Tensor y =
      ops::MatMul(a, b, {.b_trans = c.b_trans, .bias = bias, .out_dtype = c.out_dtype});
  const CudaProducts after = CudaProductsOf(gpu);
  return {y.ToVector<double>(),
          {.cublas = after.cublas - before.cublas,
           .unfused = after.unfused - before.unfused,
           .padded = after.padded - before.padded,
           .own = after.own - before.own}};
}

// In f64, and rounded by a cast.
std::vector<double> Expected(const Case& c) {
  const std::vector<double> a = Eighths(c.batch * c.m * c.k, 1);
  const std::vector<double> b = Eighths(c.batch * c.k * c.n, 2), bias = Eighths(c.n, 3);
  std::vector<double> y;
  for (int64_t z = 0; z < c.batch; ++z) {
    for (int64_t i = 0; i < c.m; ++i) {
      for (int64_t j = 0; j < c.n; ++j) {
        double sum = c.bias ? bias[static_cast<size_t>(j)] : 0;
        for (int64_t x = 0; x < c.k; ++x) {
          const int64_t at_a = i * c.k + x;
          const int64_t at_b = c.b_trans ? j * c.k + x : x * c.n + j;
          sum += a[static_cast<size_t>(z * c.m * c.k + at_a)] *
                 b[static_cast<size_t>(z * c.k * c.n + at_b)];
        }
        y.push_back(sum);
      }
    }
  }
  const ContextPtr host = CpuContext();
  return Tensor::FromVector(y, {std::ssize(y)}, host, c.out_dtype).ToVector<double>();
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{5, 7, 9},
                                {8, 64, 16},
                                {1, 7, 9},
                                {5, 1, 9},
                                {5, 7, 1},
                                {1, 1, 1},
                                {130, 129, 131}}) {
    for (int flags = 0; flags < 4; ++flags) {
      Case c{.m = m, .n = n, .k = k, .b_trans = flags % 2 == 1, .bias = flags / 2 == 1};
      cases.push_back(c);
      c.bias_dtype = c.out_dtype = DType::kF32;
      cases.push_back(c);
      c.bias_dtype = DType::kBF16;
      cases.push_back(c);
      c.dtype = c.bias_dtype = c.out_dtype = DType::kF16;
      cases.push_back(c);
      c.dtype = c.bias_dtype = c.out_dtype = DType::kF32;
      cases.push_back(c);
      c.dtype = c.bias_dtype = c.out_dtype = DType::kF64;
      cases.push_back(c);
    }
  }
  cases.push_back({.batch = 3, .bias = false});
  cases.push_back({.batch = 3, .b_trans = true, .bias = false, .out_dtype = DType::kF32});
  return cases;
}

class RefusedProductsTest : public ::testing::TestWithParam<const char*> {};

TEST_P(RefusedProductsTest, HaveTheSameBits) {
  const Environment refuses(kRefuses, GetParam());
  const bool all = std::string(GetParam()).starts_with("all");
  for (const Case& c : Cases()) {
    SCOPED_TRACE(::testing::Message()
                 << DTypeName(c.dtype) << " to " << DTypeName(c.out_dtype) << " " << c.m << " x "
                 << c.n << " x " << c.k << " batch " << c.batch << " trans " << c.b_trans
                 << " bias " << c.bias << " " << DTypeName(c.bias_dtype));
    const Outcome outcome = Multiply(c);
    EXPECT_EQ(outcome.values, Expected(c));
    EXPECT_EQ(outcome.products.cublas == 0, all);
  }
}

INSTANTIATE_TEST_SUITE_P(What, RefusedProductsTest,
                         ::testing::Values("", "bias,gelu", "unaligned", "bias,gelu,unaligned",
                                           "bias,gelu,unaligned,late", "all", "all,late"),
                         [](const auto& info) { return "set_" + std::to_string(info.index); });

// A size of 1 is not aligned either, until it is a row.
TEST(RefusedProductTest, WaysAreCounted) {
  EXPECT_EQ(Multiply({}).products, (CudaProducts{.cublas = 1}));
  EXPECT_EQ(Multiply({.m = 130, .n = 129, .k = 131}).products,
            (CudaProducts{.cublas = 1, .padded = 1}));
  {
    const Environment refuses(kRefuses, "bias");
    EXPECT_EQ(Multiply({}).products, (CudaProducts{.cublas = 1, .unfused = 1}));
    EXPECT_EQ(Multiply({.bias = false}).products, (CudaProducts{.cublas = 1}));
  }
  {
    const Environment refuses(kRefuses, "unaligned");
    EXPECT_EQ(Multiply({.bias = false}).products, (CudaProducts{.cublas = 1, .padded = 1}));
    EXPECT_EQ(Multiply({.m = 1, .n = 7, .k = 1, .bias = false}).products,
              (CudaProducts{.cublas = 1}));
  }
  {
    const Environment refuses(kRefuses, "ones");
    EXPECT_EQ(Multiply({.m = 1, .n = 7, .k = 9, .bias = false}).products.own, 1);
    EXPECT_EQ(Multiply({.bias = false}).products.own, 0);
  }
}

TEST(RefusedProductTest, IsRemembered) {
  const ContextPtr gpu = ValueOrThrow(CudaContext());
  {
    const Environment refuses(kRefuses, "bias,late");
    EXPECT_EQ(Multiply({}, gpu).products, (CudaProducts{.cublas = 1, .unfused = 1}));
  }
  // cuBLASLt, which would take it now, is not asked again; other products are not affected.
  EXPECT_EQ(Multiply({}, gpu).products, (CudaProducts{.cublas = 1, .unfused = 1}));
  EXPECT_EQ(Multiply({.m = 6}, gpu).products, (CudaProducts{.cublas = 1}));
}

TEST(RefusedProductTest, GeluWithoutTheEpilogueIsOfWhatIsKept) {
  const auto gelu = [](bool fast) {
    const ContextPtr gpu = ValueOrThrow(CudaContext({.allow_fast_gelu = fast}));
    const Tensor a = Tensor::FromVector(Eighths(64, 1), {4, 16}, gpu, DType::kBF16);
    const Tensor b = Tensor::FromVector(Eighths(128, 2), {16, 8}, gpu, DType::kBF16);
    return ops::MatMulActivation(a, b, Activation::kGeluTanh, {}).y.ToVector<float>();
  };
  const std::vector<float> nearest = gelu(false);
  EXPECT_NE(gelu(true), nearest);
  const Environment refuses(kRefuses, "gelu");
  EXPECT_EQ(gelu(true), nearest);
}

// A product in parts of 128 rows of c, of an operand that is stored by rows or by columns.
TEST(RefusedProductTest, PaddedParts) {
  const ContextPtr gpu = ValueOrThrow(CudaContext());
  for (const bool a_trans : {false, true}) {
    for (const double beta : {0.0, 1.0}) {
      constexpr int64_t kM = 300, kN = 7, kK = 9;
      const std::vector<double> as = Eighths(kM * kK, 1), bs = Eighths(kK * kN, 2);
      const std::vector<double> before = Eighths(kM * kN, 4);
      const Tensor a = Tensor::FromVector(as, {kM * kK}, gpu, DType::kBF16);
      const Tensor b = Tensor::FromVector(bs, {kK * kN}, gpu, DType::kBF16);
      const Tensor c = Tensor::FromVector(before, {kM * kN}, gpu, DType::kF32);
      const MatMulArgs args{.dtype = DType::kBF16,
                            .c_dtype = DType::kF32,
                            .bias_dtype = DType::kF32,
                            .a = a.raw(),
                            .b = b.raw(),
                            .c = c.raw(),
                            .bias = nullptr,
                            .batch = 1,
                            .m = kM,
                            .n = kN,
                            .k = kK,
                            .a_trans = a_trans,
                            .b_trans = false,
                            .lda = a_trans ? kM : kK,
                            .ldb = kN,
                            .ldc = kN,
                            .a_batch = 0,
                            .b_batch = 0,
                            .c_batch = 0,
                            .alpha = 1,
                            .beta = beta};
      std::vector<int64_t> rows;
      cuda::MatMulPadded(
          *gpu, args, cuda::OperandsToPad(args, 0),
          [&](const MatMulArgs& part) {
            rows.push_back(part.m);
            EXPECT_FALSE(cuda::OperandsToPad(part, 0).any());
            gpu->kernels().matmul(*gpu, part);
          },
          /*max_bytes=*/4096);
      EXPECT_EQ(rows, (std::vector<int64_t>{128, 128, 44}));
      std::vector<double> expected = before;
      for (int64_t i = 0; i < kM * kN; ++i) {
        double& value = expected[static_cast<size_t>(i)];
        value *= beta;
        for (int64_t x = 0; x < kK; ++x) {
          const int64_t row = i / kN;
          value += as[static_cast<size_t>(a_trans ? x * kM + row : row * kK + x)] *
                   bs[static_cast<size_t>(x * kN + i % kN)];
        }
      }
      EXPECT_EQ(c.ToVector<double>(), expected) << a_trans << " " << beta;
    }
  }
}

}  // namespace refused_products_test
}  // namespace apogee
