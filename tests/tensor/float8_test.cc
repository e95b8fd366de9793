// SPDX-License-Identifier: Apache-2.0

// Storage in 8-bit floats: tensors against conversions of single numbers, which core/float8_test.cc
// checks; and that no op computes with such a tensor.
#include "apogee/tensor/ops/float8.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/matmul.h"
#include "apogee/tests/support/test_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace apogee {
namespace float8_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};
constexpr DType kStored[] = {DType::kF8E4M3, DType::kF8E5M2};
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<uint8_t> Codes(const Tensor& x) {
  const Tensor host = x.ToHost();
  std::vector<uint8_t> codes(static_cast<size_t>(host.numel()));
  std::memcpy(codes.data(), host.raw(), codes.size());
  return codes;
}

Tensor FromCodes(const std::vector<uint8_t>& codes, const Shape& shape, DType dtype,
                 const ContextPtr& context) {
  const Tensor host = Tensor::Empty(shape, dtype, HostOf(context));
  std::memcpy(host.raw(), codes.data(), codes.size());
  return host.To(context);
}

uint8_t CodeOf(double x, DType stored, Float8Overflow overflow) {
  return DispatchFloat8(stored, "test",
                        [&]<typename T>() -> uint8_t { return T(x, overflow).bits; });
}
double ValueOf(uint8_t code, DType stored) {
  return DispatchFloat8(stored, "test", [&]<typename T>() -> double {
    return static_cast<double>(T::FromBits(code));
  });
}
double ScaleOf(double amax, DType stored, DType dtype) {
  return DispatchFloat8(stored, "test", [&]<typename T>() -> double {
    return dtype == DType::kF64 ? Float8Scale<T>(amax) : Float8Scale<T>(static_cast<float>(amax));
  });
}

// Every bf16 value and every f16 value, which f32 and f64 hold.
std::vector<double> AllShortFloats(DType dtype) {
  std::vector<double> values;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    BFloat16 brain{};
    Float16 half{};
    brain.bits = half.bits = static_cast<uint16_t>(bits);
    if (dtype != DType::kF16) values.push_back(static_cast<float>(brain));
    if (dtype != DType::kBF16) values.push_back(static_cast<float>(half));
  }
  return values;
}

TEST(Float8Tensor, CastsEveryNumber) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (const DType dtype : kFloats) {
    const std::vector<double> values = AllShortFloats(dtype);
    const auto n = static_cast<int64_t>(values.size());
    const Tensor x = Tensor::FromVector(values, {n}, context, dtype);
    for (const DType stored : kStored) {
      for (const auto overflow : {Float8Overflow::kSaturate, Float8Overflow::kNonFinite}) {
        // From the second element on, neither begin nor end is that of a vector.
        const Tensor codes = ops::CastToFloat8(x.Slice(0, 1, n - 3), stored, overflow);
        ASSERT_EQ(codes.dtype(), stored);
        const std::vector<uint8_t> got = Codes(codes);
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(got[i], CodeOf(values[i + 1], stored, overflow))
              << values[i + 1] << " " << DTypeName(dtype) << " to " << DTypeName(stored);
        }
      }
    }
  }
}

TEST(Float8Tensor, CastsADoubleOnce) {
  const ContextPtr context = TestContext();
  // Nearer to 18 than to 16, whose middle is the nearest float.
  const Tensor x = Tensor::FromVector<double>({17 + 1e-12, 17, 17 - 1e-12}, {3}, context);
  EXPECT_EQ(Codes(ops::CastToFloat8(x, DType::kF8E4M3, Float8Overflow::kSaturate)),
            (std::vector<uint8_t>{0x59, 0x58, 0x58}));
}

TEST(Float8Tensor, EveryCodeIsExactInEveryDType) {
  const ContextPtr context = TestContext();
  std::vector<uint8_t> codes(256);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
  for (const DType stored : kStored) {
    const Tensor x = FromCodes(codes, {256}, stored, context);
    for (const DType dtype : kFloats) {
      const auto values = ops::CastFromFloat8(x.Slice(0, 1, 255), dtype).ToVector<double>();
      for (size_t i = 0; i < values.size(); ++i) {
        const double expected = ValueOf(codes[i + 1], stored);
        ASSERT_TRUE(values[i] == expected || (std::isnan(values[i]) && std::isnan(expected)));
        ASSERT_EQ(std::signbit(values[i]), std::signbit(expected)) << i;
      }
    }
  }
}

// Numbers of many magnitudes, the largest not a power of two.
std::vector<double> Numbers(int64_t n, double factor) {
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) {
    const double sign = i % 3 == 0 ? -1 : 1;
    values.push_back(
        factor * sign *
        std::ldexp(1 + static_cast<double>(i * 37 % 128) / 128, static_cast<int>(i % 23) - 20));
  }
  return values;
}

TEST(Float8Tensor, QuantizesByAPowerOfTwoOfTheWholeTensor) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (const DType dtype : kFloats) {
    for (const DType stored : kStored) {
      for (const int64_t n : {1, 255, 70001}) {  // the last is more than a thread's least part
        const Tensor x = Tensor::FromVector(Numbers(n, 0.25), {n}, context, dtype);
        const std::vector<double> values = x.ToVector<double>();  // as `dtype` holds them
        double amax = 0;
        for (const double value : values) amax = std::max(amax, std::fabs(value));
        const double scale = ScaleOf(amax, stored, dtype);
        const ops::ScaledFloat8 quantized = ops::QuantizeFloat8(x, stored);
        ASSERT_EQ(quantized.scale.dtype(), ComputeDType(dtype));
        ASSERT_EQ(quantized.scale.Item(), scale);
        const std::vector<uint8_t> codes = Codes(quantized.codes);
        const auto back = ops::DequantizeFloat8(quantized, DType::kF64).ToVector<double>();
        for (size_t i = 0; i < codes.size(); ++i) {
          ASSERT_EQ(codes[i], CodeOf(values[i] * scale, stored, Float8Overflow::kNonFinite));
          ASSERT_EQ(back[i], ValueOf(codes[i], stored) / scale);
        }
        // What has been rounded is exact from then on.
        const Tensor again = ops::DequantizeFloat8(quantized, DType::kF64);
        EXPECT_EQ(ops::DequantizeFloat8(ops::QuantizeFloat8(again, stored), DType::kF64)
                      .ToVector<double>(),
                  back);
        // Another power of two changes no code.
        const Tensor larger = Tensor::FromVector(Numbers(n, 64), {n}, context, DType::kF32);
        if (dtype != DType::kF16) {
          EXPECT_EQ(Codes(ops::QuantizeFloat8(larger.To(dtype), stored).codes), codes);
        }
      }
    }
  }
}

TEST(Float8Tensor, QuantizesZerosBothSignsAndWhatIsNotFinite) {
  const ContextPtr context = TestContext();
  for (const DType stored : kStored) {
    const Tensor zeros = Tensor::FromVector<float>({0, -0.0f, 0}, {3}, context);
    const ops::ScaledFloat8 none = ops::QuantizeFloat8(zeros, stored);
    EXPECT_EQ(none.scale.Item(), 1);
    EXPECT_EQ(Codes(none.codes), (std::vector<uint8_t>{0, 0x80, 0}));
    EXPECT_EQ(ops::QuantizeFloat8(zeros.Slice(0, 0, 0), stored).scale.Item(), 1);
    for (const float sign : {1.0f, -1.0f}) {
      const Tensor x = Tensor::FromVector<float>({0, sign * 3, -sign}, {3}, context);
      EXPECT_EQ(ops::QuantizeFloat8(x, stored).scale.Item(), ScaleOf(3, stored, DType::kF32));
    }
    for (const float bad : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
      const Tensor x = Tensor::FromVector<float>({1, bad, 0}, {3}, context);
      const ops::ScaledFloat8 quantized = ops::QuantizeFloat8(x, stored);
      EXPECT_TRUE(std::isnan(quantized.scale.Item()));
      for (const double value : ops::DequantizeFloat8(quantized, DType::kF32).ToVector<double>()) {
        EXPECT_TRUE(std::isnan(value)) << bad;
      }
    }
  }
}

TEST(Float8Tensor, IsMovedLikeAnyTensor) {
  const ContextPtr context = TestContext();
  const std::vector<uint8_t> codes = {1, 2, 3, 4, 5, 0xff};
  const Tensor x = FromCodes(codes, {2, 3}, DType::kF8E4M3, context);
  EXPECT_EQ(x.bytes(), 6);
  EXPECT_EQ(Codes(x.Clone()), codes);
  EXPECT_EQ(Codes(x.Transpose(0, 1).Contiguous()), (std::vector<uint8_t>{1, 4, 2, 5, 3, 0xff}));
  EXPECT_EQ(Codes(x.Slice(1, 1, 2).Contiguous()), (std::vector<uint8_t>{2, 3, 5, 0xff}));
  // A strided operand is read in its order.
  EXPECT_EQ(ops::CastFromFloat8(x.Slice(0, 0, 1).Transpose(0, 1), DType::kF32).ToVector<float>(),
            (std::vector<float>{0x1p-9f, 0x1p-8f, 3 * 0x1p-9f}));
}

std::string ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Float8Tensor, NoOpComputesWithIt) {
  const ContextPtr context = TestContext();
  for (const DType stored : kStored) {
    const Tensor x = FromCodes({1, 2, 3, 4}, {2, 2}, stored, context);
    const std::string name = DTypeName(stored);
    const auto expect = [&](const char* op, const std::function<void()>& call) {
      EXPECT_THAT(ErrorOf(call), AllOf(HasSubstr(op), HasSubstr(name))) << op;
    };
    expect("binary", [&] { ops::Add(x, x); });
    expect("matmul", [&] { ops::MatMul(x, x); });
    expect("softmax", [&] { ops::SoftmaxForward(x); });
    expect("sum", [&] { ops::SumLeading(x, 1, DType::kF32); });
    expect("compare", [&] { ops::Less(x, x); });
    expect("fill", [&] { x.Fill(1); });
    expect("CopyFrom: does not convert", [&] { x.To(DType::kF32); });
    expect("CopyFrom: does not convert", [&] { x.ToVector<float>(); });
    expect("CopyFrom: does not convert",
           [&] { Tensor::FromVector<float>({1}, {1}, context, stored); });
    EXPECT_THAT(ErrorOf([&] { x.To(DType::kBF16); }), HasSubstr("ops::CastFromFloat8(x, dtype)"));
    const Tensor y = Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2}, context);
    expect("matmul", [&] { ops::MatMul(y, y, {.out_dtype = stored}); });
    expect("matmul", [&] { ops::MatMul(y, y, {.bias = x.View({4}).Slice(0, 0, 2)}); });
  }
}

TEST(Float8Tensor, RefusesOtherDTypes) {
  const ContextPtr context = TestContext();
  const Tensor whole = Tensor::FromVector<int32_t>({1}, {1}, context);
  const Tensor x = Tensor::FromVector<float>({1}, {1}, context);
  constexpr auto kSaturate = Float8Overflow::kSaturate;
  EXPECT_EQ(ErrorOf([&] { ops::CastToFloat8(whole, DType::kF8E4M3, kSaturate); }),
            "CastToFloat8: x must be f32, bf16, f16 or f64, got i32");
  EXPECT_EQ(ErrorOf([&] { ops::CastToFloat8(x, DType::kBF16, kSaturate); }),
            "CastToFloat8: the dtype must be f8_e4m3 or f8_e5m2, got bf16");
  EXPECT_EQ(ErrorOf([&] { ops::CastFromFloat8(x, DType::kF32); }),
            "CastFromFloat8: x must be f8_e4m3 or f8_e5m2, got f32");
  EXPECT_EQ(ErrorOf([&] { ops::QuantizeFloat8(x, DType::kU8); }),
            "QuantizeFloat8: the dtype must be f8_e4m3 or f8_e5m2, got u8");
  EXPECT_EQ(ErrorOf([&] { ops::MatMul(whole, whole); }),
            "matmul: needs a floating dtype (f32, bf16, f16, f64), got i32");
  const ops::ScaledFloat8 stored = ops::QuantizeFloat8(x, DType::kF8E4M3);
  EXPECT_EQ(ErrorOf([&] {
              ops::DequantizeFloat8({stored.codes, whole}, DType::kF32);
            }),
            "DequantizeFloat8: the scale must be one number of f32 or f64, got [1] of i32");
}

}  // namespace float8_test
}  // namespace apogee
