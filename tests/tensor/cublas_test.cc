// SPDX-License-Identifier: Apache-2.0

// Products through cuBLASLt: a library that is absent or none, addresses of any alignment, TF32.
#include <cstdlib>

#include "apogee/tests/support/buffer.h"
#include "gmock/gmock-matchers.h"

namespace apogee {
namespace cublas_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kM = 6, kN = 8, kK = 10;

MatMulArgs Args(const Buffer& a, const Buffer& b, Buffer& c) {
  return {.dtype = a.dtype(),
          .c_dtype = c.dtype(),
          .bias_dtype = c.dtype(),
          .a = a.data(),
          .b = b.data(),
          .c = c.data(),
          .bias = nullptr,
          .batch = 1,
          .m = kM,
          .n = kN,
          .k = kK,
          .a_trans = false,
          .b_trans = false,
          .lda = kK,
          .ldb = kN,
          .ldc = kN,
          .a_batch = 0,
          .b_batch = 0,
          .c_batch = 0,
          .alpha = 1,
          .beta = 0};
}

std::vector<double> Product(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> c(kM * kN);
  for (int64_t i = 0; i < kM * kN; ++i) {
    for (int64_t x = 0; x < kK; ++x) c[i] += a[i / kN * kK + x] * b[x * kN + i % kN];
  }
  return c;
}

class CublasTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!TestsRunOnCuda()) GTEST_SKIP() << "runs with " << kTestDeviceVariable << "=cuda";
  }
  // Of a product with APOGEE_CUBLASLT set to `library`.
  std::string ErrorWith(const char* library) {
    const ContextPtr context = TestContext();
    const Buffer a(DType::kF32, kM * kK), b(DType::kF32, kK * kN);
    Buffer c(DType::kF32, kM * kN);
    setenv("APOGEE_CUBLASLT", library, 1);
    std::string message = "none";
    try {
      context->kernels().matmul(*context, Args(a, b, c));
    } catch (const Error& error) {
      message = error.what();
    }
    unsetenv("APOGEE_CUBLASLT");
    return message;
  }
};

// First: a library that has been found is kept.
TEST_F(CublasTest, AbsentLibrary) {
  EXPECT_THAT(ErrorWith("/no/such/libcublasLt.so.13"),
              AllOf(HasSubstr("matmul: "), HasSubstr("/no/such/libcublasLt.so.13"),
                    HasSubstr("APOGEE_CUBLASLT")));
  EXPECT_THAT(ErrorWith("libm.so.6"),
              AllOf(HasSubstr("libm.so.6 is no cuBLASLt"), HasSubstr("cublasLtCreate")));
  EXPECT_EQ(TestContext()->ledger().live_total_bytes(), 0);
}

// The same shapes: what was chosen for well aligned addresses must not be used for others.
TEST_F(CublasTest, AddressesOfAnyAlignment) {
  const ContextPtr context = TestContext();
  for (DType dtype : kFloats) {
    for (int64_t a_at : {0, 1, 4}) {
      for (int64_t bias_at : {0, 1, 8}) {
        const int64_t size = DTypeSize(dtype);
        const Buffer a = Buffer::Normal(dtype, kM * kK + a_at, 1);
        const Buffer b = Buffer::Normal(dtype, kK * kN + a_at, 2);
        const Buffer bias = Buffer::Normal(dtype, kN + bias_at, 3);
        Buffer c(dtype, kM * kN + a_at);
        MatMulArgs args = Args(a, b, c);
        args.a = static_cast<const char*>(args.a) + a_at * size;
        args.b = static_cast<const char*>(args.b) + a_at * size;
        args.c = static_cast<char*>(args.c) + a_at * size;
        args.bias = static_cast<const char*>(bias.data()) + bias_at * size;
        context->kernels().matmul(*context, args);
        const auto from = [](const Buffer& x, int64_t first) {
          const std::vector<double> values = x.values();
          return std::vector<double>(values.begin() + first, values.end());
        };
        std::vector<double> expected = Product(from(a, a_at), from(b, a_at));
        for (int64_t i = 0; i < kM * kN; ++i) expected[i] += bias.values()[bias_at + i % kN];
        ExpectClose(from(c, a_at), expected, size == 2 ? 1e-2 : size == 4 ? 1e-5 : 1e-13);
      }
    }
  }
}

TEST_F(CublasTest, Tf32IsOnRequestOnly) {
  const Buffer a = Buffer::Normal(DType::kF32, kM * kK, 1);
  const Buffer b = Buffer::Normal(DType::kF32, kK * kN, 2);
  const std::vector<double> expected = Product(a.values(), b.values());
  for (bool allow : {false, true}) {
    const ContextPtr context = ValueOrThrow(CudaContext({.allow_tf32 = allow}));
    Buffer c(DType::kF32, kM * kN);
    context->kernels().matmul(*context, Args(a, b, c));
    context->Synchronize();
    double error = 0;
    for (int64_t i = 0; i < kM * kN; ++i) {
      error = std::max(error, std::abs(c.values()[i] - expected[i]));
    }
    EXPECT_LT(error, allow ? 2e-2 : 1e-5);
    if (allow) {
      EXPECT_GT(error, 1e-4);
    }
  }
}

}  // namespace cublas_test
}  // namespace apogee
