// SPDX-License-Identifier: Apache-2.0

// The tensor cores' instructions against plain products. All numbers are small integers, so that
// the products are exact.
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/tensor/mma_kernels.h"

namespace apogee {
namespace mma_test {

using Matrix = std::vector<double>;  // 16×16, in rows

Matrix Product(const Matrix& a, const Matrix& b) {
  Matrix c(256);
  for (int i = 0; i < 256; ++i) {
    for (int k = 0; k < 16; ++k) c[i] += a[i / 16 * 16 + k] * b[k * 16 + i % 16];
  }
  return c;
}

TEST(MmaTest, ProductsAreThoseOfTheDefinition) {
  if (!TestsRunOnCuda()) GTEST_SKIP() << "runs with " << kTestDeviceVariable << "=cuda";
  const ContextPtr context = TestContext();
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    std::mt19937 random(3);
    std::uniform_int_distribution<int> digit(-1, 1);
    Matrix a(256), b(256), b_transposed(256);
    for (double& x : a) x = digit(random);
    for (int i = 0; i < 256; ++i) b_transposed[i % 16 * 16 + i / 16] = b[i] = digit(random);
    const Buffer device_a(dtype, a), device_b(dtype, b), device_bt(dtype, b_transposed);
    Buffer products(DType::kF32, 3 * 256);
    MmaProducts(*context, dtype, device_a.data(), device_b.data(), device_bt.data(),
                static_cast<float*>(products.data()));
    const std::vector<double> actual = products.values();
    const auto part = [&](int i) {
      return Matrix(actual.begin() + i * 256, actual.begin() + (i + 1) * 256);
    };
    const Matrix once = Product(a, b);
    EXPECT_EQ(part(0), once);
    EXPECT_EQ(part(1), once);
    EXPECT_EQ(part(2), Product(once, b));
  }
}

}  // namespace mma_test
}  // namespace apogee
