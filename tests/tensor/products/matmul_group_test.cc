// SPDX-License-Identifier: Apache-2.0

// MatMulGroup gives each product the bits that it has alone, whichever way they are shared out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apogee/core/rng.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/ops/matmul.h"
#include "apogee/tensor/ops/nn.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace matmul_group_test {

using ::testing::HasSubstr;
using testing::Says;

Tensor Random(const std::string& name, const Shape& shape, DType dtype, const ContextPtr& context) {
  const Tensor x = Tensor::Empty(shape, DType::kF32, context);
  ops::FillNormal(x, 0, 1, MakeKey(1, name));
  return x.To(dtype);
}

// The rows of each product: even, with one that has most of the work, with very few rows, none.
const std::vector<std::vector<int64_t>> kRows = {{64, 64, 64, 64},
                                                 {33, 70, 20, 51, 64, 9},
                                                 {300, 20, 17},
                                                 {1, 40, 2, 41},
                                                 {0, 24, 25, 0},
                                                 {50},
                                                 {}};

TEST(MatMulGroupTest, SameBitsAsAlone) {
  constexpr int64_t kIn = 72, kOut = 96;
  for (const int threads : {1, 2, 3}) {
    const ContextPtr context = CpuContext({.num_threads = threads});
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      for (const std::vector<int64_t>& rows : kRows) {
        std::vector<ops::GroupedProduct> products;
        for (size_t i = 0; i < rows.size(); ++i) {
          const auto random = [&](const std::string& name, const Shape& shape) {
            return Random(name + std::to_string(i), shape, dtype, context);
          };
          const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
          products.push_back({random("x", {rows[i], kIn}),
                              random("w", {kOut, kIn}),
                              {.b_trans = true, .bias = random("bias", {kOut})}});
          products.push_back(
              {random("dy", {rows[i], kOut}), random("w", {kOut, kIn}), {.out_dtype = wide}});
          products.push_back({random("dy", {rows[i], kOut}),
                              random("x", {rows[i], kIn}),
                              {.a_trans = true, .out_dtype = wide}});
        }
        const std::vector<Tensor> got = ops::MatMulGroup(products);
        ASSERT_EQ(got.size(), products.size());
        for (size_t i = 0; i < got.size(); ++i) {
          const bool sums_rows = products[i].options.a_trans;
          const Tensor want = sums_rows
                                  ? ops::MatMulGroup({products[i]})[0]
                                  : ops::MatMul(products[i].a, products[i].b, products[i].options);
          EXPECT_EQ(got[i].dtype(), want.dtype());
          EXPECT_EQ(got[i].shape(), want.shape());
          EXPECT_EQ(got[i].ToVector<double>(), want.ToVector<double>()) << i;
        }
      }
    }
  }
}

TEST(MatMulGroupTest, Misuse) {
  const ContextPtr context = CpuContext({.num_threads = 2});
  const Tensor batched = Random("x", {2, 3, 4}, DType::kF32, context);
  EXPECT_THAT(
      [&] {
        ops::MatMulGroup({{batched, Random("w", {2, 4, 3}, DType::kF32, context)}});
      },
      Says(HasSubstr("matmul_group: needs matrices, got shapes [2, 3, 4] and [2, 4, 3]")));
}

}  // namespace matmul_group_test
}  // namespace apogee
