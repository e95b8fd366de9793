// SPDX-License-Identifier: Apache-2.0

// Weights in 4 and 8 bits: encoded, and decoded on every device, against plain loops in double.
// `apogee verify` compares nf4 with bitsandbytes.
#include "apogee/tensor/ops/block_codes.h"

#include <gmock/gmock-matchers.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace block_codes_test {

using ::testing::HasSubstr;
using testing::Says;

// One element and an odd end, one block and its neighbours, and more than one nested block.
constexpr int64_t kSizes[] = {1, 63, 64, 65, 707, 64 * 256 + 1, 64 * 300 + 33};

float FloatAt(const std::vector<uint8_t>& bytes, int64_t at) {
  float value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

// What the bytes say of element i, by the formulas of block_codes.h. Rounded where these round.
double Meaning(const BlockCodes& codes, const std::vector<uint8_t>& bytes, int64_t i) {
  const int64_t block = i / 64;
  float scale = 0;
  if (codes.nested) {
    const auto code = bytes[static_cast<size_t>(codes.scale_begin() + block)];
    const auto scaled = static_cast<float>(
        static_cast<double>(FloatAt(bytes, codes.nested_map_begin() + 4 * int64_t{code})) *
        FloatAt(bytes, codes.nested_begin() + block / 256 * 4));
    scale = static_cast<float>(static_cast<double>(scaled) + FloatAt(bytes, codes.offset_begin()));
  } else {
    scale = FloatAt(bytes, codes.scale_begin() + 4 * block);
  }
  if (codes.kind == BlockCodeKind::kInt8) {
    const auto code = static_cast<int8_t>(bytes[static_cast<size_t>(codes.code_begin() + i)]);
    const auto step = static_cast<float>(static_cast<double>(scale) / 127);
    return static_cast<float>(static_cast<double>(code) * step);
  }
  const uint8_t pair = bytes[static_cast<size_t>(codes.code_begin() + i / 2)];
  const int code = i % 2 == 0 ? pair / 16 : pair % 16;
  return static_cast<float>(static_cast<double>(FloatAt(bytes, 4 * code)) * scale);
}

std::vector<BlockCodes> Kinds(int64_t numel) {
  std::vector<BlockCodes> kinds;
  for (const BlockCodeKind kind : {BlockCodeKind::kNf4, BlockCodeKind::kInt8}) {
    for (const bool nested : {false, true}) kinds.push_back({kind, nested, numel});
  }
  return kinds;
}

TEST(BlockCodesTest, DecodesWhatTheBytesSay) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (const int64_t n : kSizes) {
    for (const BlockCodes& codes : Kinds(n)) {
      for (const DType dtype : kFloats) {
        const std::vector<double> x = Buffer::Normal(dtype, n, 3).values();
        const Tensor value = Tensor::FromVector(x, {n}, context, dtype);
        const Tensor bytes = ops::EncodeBlocks(value, codes);
        const std::vector<uint8_t> host = bytes.ToVector<uint8_t>();
        ASSERT_EQ(std::ssize(host), codes.bytes());
        const Tensor decoded = ops::DecodeBlocks(bytes, codes, {}, {n}, dtype);
        std::vector<double> want;
        for (int64_t i = 0; i < n; ++i) want.push_back(Meaning(codes, host, i));
        EXPECT_EQ(decoded.ToVector<double>(), Buffer(dtype, want).values())
            << n << " " << DTypeName(dtype) << (codes.nested ? " nested" : "");
      }
    }
  }
}

// A code is the nearest: no value is further off than half the largest step of its map. A nested
// scale is off by less than a hundredth of how far scales are from their mean.
TEST(BlockCodesTest, CodesAreTheNearest) {
  const ContextPtr context = TestContext();
  for (const int64_t n : kSizes) {
    const std::vector<double> x = Buffer::Normal(DType::kF32, n, 5, 0.02).values();
    std::vector<double> largest;
    for (int64_t i = 0; i < n; ++i) {
      if (i % 64 == 0) largest.push_back(0);
      largest.back() = std::max(largest.back(), std::fabs(x[static_cast<size_t>(i)]));
    }
    const auto [low, high] = std::ranges::minmax(largest);
    for (const BlockCodes& codes : Kinds(n)) {
      const Tensor bytes =
          ops::EncodeBlocks(Tensor::FromVector(x, {n}, context, DType::kF32), codes);
      const std::vector<double> y =
          ops::DecodeBlocks(bytes, codes, {}, {n}, DType::kF64).ToVector<double>();
      const double step = codes.kind == BlockCodeKind::kNf4 ? 0.3039 / 2 : 0.5 / 127;
      const double off = codes.nested ? 0.01 * (high - low) + 1e-6 * high : 0;
      for (int64_t i = 0; i < n; ++i) {
        const double bound = largest[static_cast<size_t>(i / 64)] * step * 1.0001 + off;
        EXPECT_NEAR(x[static_cast<size_t>(i)], y[static_cast<size_t>(i)], bound) << i;
      }
    }
  }
}

TEST(BlockCodesTest, ZerosAndExtremes) {
  const ContextPtr context = TestContext();
  std::vector<double> x(130, 0.0);
  x[64] = -3;
  for (int i = 65; i < 128; ++i) x[static_cast<size_t>(i)] = 3e-20;
  for (const BlockCodes& codes : Kinds(130)) {
    if (codes.nested) continue;  // a mean of such scales says little of each
    const Tensor bytes =
        ops::EncodeBlocks(Tensor::FromVector(x, {130}, context, DType::kF32), codes);
    const std::vector<double> y =
        ops::DecodeBlocks(bytes, codes, {}, {130}, DType::kF32).ToVector<double>();
    for (int i = 0; i < 130; ++i) {
      EXPECT_EQ(y[static_cast<size_t>(i)], i == 64 ? -3 : 0) << i;
    }
  }
}

TEST(BlockCodesTest, RefusesWhatHasNoCode) {
  const ContextPtr context = TestContext();
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const Tensor value = Tensor::FromVector<double>({1, bad}, {2}, context, DType::kF32);
    EXPECT_THAT([&] { ops::EncodeBlocks(value, {.numel = 2}); },
                Says(HasSubstr("is not finite, and has no code")));
  }
}

}  // namespace block_codes_test
}  // namespace apogee
