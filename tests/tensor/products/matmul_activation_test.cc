// SPDX-License-Identifier: Apache-2.0

// Products with an activation against a product and an activation in double; what is rounded when.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "apogee/tensor/cuda/cuda_context.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee {
namespace matmul_activation_test {

constexpr int64_t kM = 6, kK = 10;

double GeluTanh(double x) {
  const double u = std::numbers::sqrt2 * std::numbers::inv_sqrtpi * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + std::tanh(u));
}

struct Case {
  DType dtype = DType::kF32;
  int64_t n = 8;
  bool bias = true, a_trans = false, b_trans = false;
  Activation activation = Activation::kGeluTanh;
  int64_t pre_offset = 0, y_offset = 0;  // from where memory begins, in elements
};

struct Results {
  std::vector<double> pre, y;  // of the kernel
  std::vector<double> exact;   // the product and its bias
};

// Eighths, so that a sum of products is exact in f32, and has more digits than bf16.
Buffer Eighths(DType dtype, int64_t n, unsigned seed) {
  std::vector<double> values = Buffer::Normal(DType::kF64, n, seed).values();
  for (double& value : values) value = std::clamp(std::round(8 * value) / 8, -2.0, 2.0);
  return Buffer(dtype, values);
}

Results Multiply(const Case& c, const ContextPtr& context = TestContext({.num_threads = 2})) {
  const Buffer a = Eighths(c.dtype, kM * kK, 1), b = Eighths(c.dtype, kK * c.n, 2);
  const Buffer bias = Eighths(c.dtype, c.n, 3);
  Buffer pre(c.dtype, kM * c.n + c.pre_offset), y(c.dtype, kM * c.n + c.y_offset);
  const auto at = [&](Buffer& x, int64_t offset) {
    return static_cast<char*>(x.data()) + offset * DTypeSize(c.dtype);
  };
  context->kernels().matmul_activation(*context,
                                       {.product = {.dtype = c.dtype,
                                                    .c_dtype = c.dtype,
                                                    .bias_dtype = c.dtype,
                                                    .a = a.data(),
                                                    .b = b.data(),
                                                    .c = at(pre, c.pre_offset),
                                                    .bias = c.bias ? bias.data() : nullptr,
                                                    .batch = 1,
                                                    .m = kM,
                                                    .n = c.n,
                                                    .k = kK,
                                                    .a_trans = c.a_trans,
                                                    .b_trans = c.b_trans,
                                                    .lda = c.a_trans ? kM : kK,
                                                    .ldb = c.b_trans ? kK : c.n,
                                                    .ldc = c.n,
                                                    .a_batch = 0,
                                                    .b_batch = 0,
                                                    .c_batch = 0,
                                                    .alpha = 1,
                                                    .beta = 0},
                                        .activation = c.activation,
                                        .y = at(y, c.y_offset)});
  Results results;
  const auto from = [](const Buffer& x, int64_t offset) {
    const std::vector<double> values = x.values();
    return std::vector<double>(values.begin() + offset, values.end());
  };
  results.pre = from(pre, c.pre_offset);
  results.y = from(y, c.y_offset);
  EXPECT_EQ(context->ledger().live_total_bytes(), 0);
  const std::vector<double> as = a.values(), bs = b.values(), biases = bias.values();
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = c.bias ? biases[j] : 0;
      for (int64_t x = 0; x < kK; ++x) {
        sum += as[c.a_trans ? x * kM + i : i * kK + x] * bs[c.b_trans ? j * kK + x : x * c.n + j];
      }
      results.exact.push_back(sum);
    }
  }
  return results;
}

TEST(MatMulActivation, MatchesReference) {
  for (DType dtype : kFloats) {
    for (int64_t n : {0, 1, 7, 8, 24}) {
      for (int flags = 0; flags < 8; ++flags) {
        SCOPED_TRACE(::testing::Message() << DTypeName(dtype) << " n " << n << " flags " << flags);
        const Results results = Multiply({.dtype = dtype,
                                          .n = n,
                                          .bias = (flags & 1) != 0,
                                          .a_trans = (flags & 2) != 0,
                                          .b_trans = (flags & 4) != 0});
        std::vector<double> y = results.exact;
        for (double& value : y) value = GeluTanh(value);
        ExpectClose(results.pre, results.exact, Tolerance(dtype, ErrorKind::kElementwise));
        ExpectClose(results.y, y, 2 * Tolerance(dtype, ErrorKind::kElementwise));
      }
    }
  }
}

// So what is kept is enough to compute the activation again, with the same bits. For all shapes: a
// shard may lie where the whole does not.
TEST(MatMulActivation, IsOfWhatIsKept) {
  const ContextPtr context = TestContext();
  for (DType dtype : kFloats) {
    for (Activation activation : {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh}) {
      for (int64_t n : {7, 8, 24}) {
        const Results results =
            Multiply({.dtype = dtype, .n = n, .activation = activation}, context);
        const Tensor kept = Tensor::FromVector<double>(results.pre, {kM * n}, context);
        const Tensor again = ops::ActivationForward(activation, kept.To(dtype));
        EXPECT_EQ(results.y, again.ToVector<double>()) << DTypeName(dtype) << " n " << n;
      }
    }
  }
}

// cuBLASLt's epilogue computes the GELU of the sums. It need not round to the nearest, but is not
// far off. For shapes and addresses that it takes or not.
TEST(MatMulActivation, FastGeluIsWithinOneUnit) {
  if (!TestsRunOnCuda()) GTEST_SKIP() << "runs with " << kTestDeviceVariable << "=cuda";
  const ContextPtr context = ValueOrThrow(CudaContext({.allow_fast_gelu = true}));
  TestContexts::Get().Add(context);
  constexpr double kUlp = 0x1p-7 * 1.01, kHalfUlp = kUlp / 2;
  for (int64_t n : {7, 8, 24}) {
    for (const auto& [pre_offset, y_offset] : {std::pair(0, 0), {0, 1}, {1, 0}}) {
      for (bool bias : {false, true}) {
        const Results results = Multiply({.dtype = DType::kBF16,
                                          .n = n,
                                          .bias = bias,
                                          .pre_offset = pre_offset,
                                          .y_offset = y_offset},
                                         context);
        for (size_t i = 0; i < results.y.size(); ++i) {
          const double pre = results.exact[i];
          ASSERT_NEAR(results.pre[i], pre, kHalfUlp * std::abs(pre)) << n << " " << i;
          // Where it does not take the shape: of what is kept.
          const auto is_gelu_of = [&](double x) {
            return std::abs(results.y[i] - GeluTanh(x)) <= kUlp * std::abs(GeluTanh(x)) + 1e-6;
          };
          ASSERT_TRUE(is_gelu_of(pre) || is_gelu_of(results.pre[i])) << n << " " << i;
        }
      }
    }
  }
}

}  // namespace matmul_activation_test
}  // namespace apogee
