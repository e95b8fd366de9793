// SPDX-License-Identifier: Apache-2.0

// copy: layouts and dtype pairs against a plain index loop.
#include "apogee/tensor/tensor.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee {
namespace copy_test {

constexpr DType kAll[] = {DType::kF64, DType::kF32, DType::kBF16, DType::kF16,
                          DType::kI64, DType::kI32, DType::kU8,   DType::kI8};

struct Case {
  const char* name;
  Shape shape;
  std::vector<int64_t> x_strides, y_strides;
};

const Case kCases[] = {
    {"empty", {0, 3}, {3, 1}, {3, 1}},
    {"scalar", {}, {}, {}},
    {"one", {1}, {1}, {1}},
    {"contiguous", {33, 17}, {17, 1}, {17, 1}},
    {"rows with gaps", {33, 17}, {20, 1}, {17, 1}},
    {"scattered rows", {33, 17}, {17, 1}, {40, 1}},
    {"transposed", {33, 17}, {1, 33}, {17, 1}},
    {"transposed tiles", {130, 97}, {1, 130}, {97, 1}},
    {"transposed out", {33, 17}, {17, 1}, {1, 33}},
    {"strided", {33, 17}, {51, 3}, {34, 2}},
    {"broadcast row", {33, 17}, {0, 1}, {17, 1}},
    {"broadcast column", {33, 17}, {1, 0}, {17, 1}},
    {"broadcast scalar", {33, 17}, {0, 0}, {17, 1}},
    {"heads", {2, 3, 7, 5}, {105, 5, 15, 1}, {105, 35, 5, 1}},
    {"heads in vectors", {2, 3, 7, 16}, {336, 16, 48, 1}, {336, 112, 16, 1}},
    {"spread in vectors", {33, 16}, {1, 0}, {16, 1}},
    {"rows of vectors with gaps", {33, 16}, {32, 1}, {16, 1}},
    {"rows off the vectors", {33, 16}, {17, 1}, {16, 1}},
    {"batched transpose", {3, 40, 35}, {1400, 1, 40}, {1400, 35, 1}},
    {"outer to inner", {5, 4, 33}, {1, 165, 5}, {132, 33, 1}},
    {"six dims", {2, 3, 2, 3, 2, 3}, {1, 2, 6, 12, 36, 72}, {108, 36, 18, 6, 3, 1}},
};

int64_t Extent(const Shape& shape, const std::vector<int64_t>& strides) {
  int64_t last = 0;
  for (int i = 0; i < shape.rank(); ++i) {
    last += std::max<int64_t>(0, shape[i] - 1) * strides[static_cast<size_t>(i)];
  }
  return last + 1;
}

void Check(const DeviceContext& context, const Case& test, DType x_dtype, DType y_dtype) {
  SCOPED_TRACE(::testing::Message()
               << test.name << " " << DTypeName(x_dtype) << " to " << DTypeName(y_dtype));
  // Whole numbers that every dtype holds exactly.
  std::vector<double> values(static_cast<size_t>(Extent(test.shape, test.x_strides)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i * 37 % 101);
  const Buffer x(x_dtype, values);
  Buffer y(y_dtype, Extent(test.shape, test.y_strides));
  std::vector<double> expected = y.values();
  for (int64_t flat = 0; flat < test.shape.numel(); ++flat) {
    int64_t rest = flat;
    int64_t from = 0;
    int64_t to = 0;
    for (int d = test.shape.rank() - 1; d >= 0; --d) {
      const int64_t index = rest % test.shape[d];
      rest /= test.shape[d];
      from += index * test.x_strides[static_cast<size_t>(d)];
      to += index * test.y_strides[static_cast<size_t>(d)];
    }
    expected[static_cast<size_t>(to)] = values[static_cast<size_t>(from)];
  }
  CopyArgs args{x_dtype, y_dtype, x.data(), y.data(), test.shape, {}, {}};
  std::copy(test.x_strides.begin(), test.x_strides.end(), args.x_strides);
  std::copy(test.y_strides.begin(), test.y_strides.end(), args.y_strides);
  context.kernels().copy(context, args);
  ExpectClose(y.values(), expected, Tolerance(DType::kF32, ErrorKind::kCopy));
}

TEST(Copy, EveryLayout) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (const Case& test : kCases) {
    for (DType dtype : kAll) Check(*context, test, dtype, dtype);
    Check(*context, test, DType::kF32, DType::kBF16);
    Check(*context, test, DType::kBF16, DType::kF32);
  }
}

TEST(Copy, EveryPairOfDTypes) {
  const ContextPtr context = TestContext();
  for (DType x_dtype : kAll) {
    for (DType y_dtype : kAll) {
      for (const Case& test : {kCases[3], kCases[6], kCases[9]}) {
        Check(*context, test, x_dtype, y_dtype);
      }
    }
  }
}

TEST(Copy, LargeLayoutsWithSeveralThreads) {
  const ContextPtr context = TestContext({.num_threads = 3});
  for (const Case& test :
       {Case{"contiguous", {100001}, {1}, {1}}, Case{"strided", {100001}, {2}, {1}},
        Case{"transposed", {301, 401}, {1, 301}, {401, 1}},
        Case{"heads", {3, 70, 6, 64}, {26880, 384, 64, 1}, {26880, 64, 4480, 1}}}) {
    Check(*context, test, DType::kF32, DType::kF32);
    Check(*context, test, DType::kF32, DType::kBF16);
  }
}

TEST(Copy, KeepsTheBitsOfNaN) {
  const ContextPtr context = TestContext();
  const std::vector<uint32_t> bits = {0x7f800001u, 0xffc12345u, 0x80000000u};
  std::vector<float> values;
  for (uint32_t word : bits) values.push_back(std::bit_cast<float>(word));
  const Tensor x = Tensor::FromVector<float>(values, {3}, context);
  const Tensor y = Tensor::Zeros({3}, DType::kF32, context);
  const Tensor spread = Tensor::Zeros({3, 2}, DType::kF32, context);
  context->kernels().copy(*context,
                          {DType::kF32, DType::kF32, x.raw(), y.raw(), Shape{3}, {1}, {1}});
  context->kernels().copy(*context,
                          {DType::kF32, DType::kF32, x.raw(), spread.raw(), Shape{3}, {1}, {2}});
  const std::vector<float> copied = y.ToVector<float>(), strided = spread.ToVector<float>();
  for (size_t i = 0; i < bits.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(copied[i]), bits[i]);
    EXPECT_EQ(std::bit_cast<uint32_t>(strided[2 * i]), bits[i]);
  }
  Buffer half(DType::kBF16, 3);
  context->kernels().copy(*context,
                          {DType::kF32, DType::kBF16, x.raw(), half.data(), Shape{3}, {1}, {1}});
  EXPECT_TRUE(std::isnan(half.values()[0]) && std::isnan(half.values()[1]));
  EXPECT_TRUE(std::signbit(half.values()[2]));
}

}  // namespace copy_test
}  // namespace apogee
