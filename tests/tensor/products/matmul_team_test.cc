// SPDX-License-Identifier: Apache-2.0

// Products where OpenMP grants fewer threads than the context has: the same bits.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <thread>

#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/buffer.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace apogee {
namespace matmul_team_test {

#ifdef _OPENMP
constexpr int64_t kM = 96, kN = 160, kK = 384;

std::vector<double> Product(DType dtype, int num_threads) {
  const ContextPtr context = CpuContext({.num_threads = num_threads});
  const Buffer a = Buffer::Normal(dtype, kM * kK, 7), b = Buffer::Normal(dtype, kK * kN, 8);
  Buffer c(DType::kF32, std::vector<double>(kM * kN, NAN));
  MatMulArgs args{};
  args.dtype = dtype;
  args.c_dtype = DType::kF32;
  args.a = a.data();
  args.b = b.data();
  args.c = c.data();
  args.batch = 1;
  args.m = kM;
  args.n = args.ldb = args.ldc = kN;
  args.k = args.lda = kK;
  args.alpha = 1;
  context->kernels().matmul(*context, args);
  return c.values();
}

// Settings are a thread's own; `setting` is made on one of its own.
std::vector<double> ProductWith(DType dtype, const std::function<void()>& setting) {
  std::vector<double> result;
  std::thread([&] {
    setting();
    result = Product(dtype, 4);
  }).join();
  return result;
}

class MatMulTeamTest : public ::testing::TestWithParam<DType> {};

TEST_P(MatMulTeamTest, WithDynamicAdjustment) {
  EXPECT_EQ(ProductWith(GetParam(), [] { omp_set_dynamic(1); }), ProductWith(GetParam(), [] {}));
}

TEST_P(MatMulTeamTest, WithoutActiveLevels) {
  const auto want = ProductWith(GetParam(), [] {});
  EXPECT_EQ(ProductWith(GetParam(), [] { omp_set_max_active_levels(0); }), want);
  // The settings of a thread may change between two products.
  EXPECT_EQ(ProductWith(GetParam(),
                        [] {
                          Product(GetParam(), 4);
                          omp_set_max_active_levels(0);
                        }),
            want);
}

// Each thread of the region runs its products alone.
TEST_P(MatMulTeamTest, WithinARegion) {
  for (const int levels : {1, 3}) {
    std::vector<std::vector<double>> results(2);
    std::vector<double> alone;
    std::thread([&] {
      alone = Product(GetParam(), 1);
      omp_set_max_active_levels(levels);
#pragma omp parallel for num_threads(2) schedule(static, 1)
      for (size_t i = 0; i < 2; ++i) results[i] = Product(GetParam(), 4);
    }).join();
    EXPECT_EQ(results[0], alone) << levels;
    EXPECT_EQ(results[1], alone) << levels;
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, MatMulTeamTest, ::testing::Values(DType::kF32, DType::kBF16));
#else
TEST(MatMulTeamTest, FewerThreadsThanTheContextHas) { GTEST_SKIP() << "built without OpenMP"; }
#endif

}  // namespace matmul_team_test
}  // namespace apogee
