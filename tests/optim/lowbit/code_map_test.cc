// SPDX-License-Identifier: Apache-2.0

// The kernels' codes against a search through the midpoints of the map.
#include "apogee/optim/lowbit/code_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "apogee/optim/lowbit/quantized_state.h"
#include "apogee/tests/optim/optim_fixture.h"

namespace apogee::optim {
namespace code_map_test {

// The nearest value; on a midpoint, rounded to f32, the one nearer to zero.
int NearestCode(const CodeMap& map, float x) {
  const int zero = map.is_signed() ? 127 : 0;
  const int direction = map.is_signed() && std::signbit(x) ? -1 : 1;
  int code = zero;
  for (int next = code + direction; next >= 0 && next < 256; next += direction) {
    const float middle = (map.values()[code] + map.values()[next]) / 2;
    if (std::fabs(x) <= std::fabs(middle)) break;
    code = next;
  }
  return code;
}

// Midpoints and values with their neighbours in f32, numbers of every size, zeros.
std::vector<float> Probes(const CodeMap& map) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> probes = {0.0f, -0.0f, std::numeric_limits<float>::denorm_min(), 1.0f};
  const auto add = [&](float x) {
    for (const float y : {std::nextafter(x, -kInfinity), x, std::nextafter(x, kInfinity)}) {
      if (std::fabs(y) > 1) continue;
      probes.push_back(y);
      if (map.is_signed()) probes.push_back(-y);
    }
  };
  for (int code = 0; code < 255; ++code) {
    add((map.values()[code] + map.values()[code + 1]) / 2);
    add(map.values()[code]);
  }
  for (int exponent = -30; exponent < 0; ++exponent) add(std::ldexp(1.0f, exponent));
  std::mt19937 random(7);
  std::uniform_real_distribution<float> log2_size(-26, 0);
  for (int i = 0; i < 50000; ++i) {
    const float x = std::exp2(log2_size(random));
    probes.push_back(map.is_signed() && i % 2 == 1 ? -x : x);
  }
  return probes;
}

// Blocks that begin with `scale`, so that codes are those of the probes; the last one is cut short.
template <typename C>
void ExpectNearest(const CodeMap& map, DType dtype, int64_t block, double scale) {
  const std::vector<float> probes = Probes(map);
  std::vector<float> expected;
  std::vector<C> values;
  for (const float probe : probes) {
    if (static_cast<int64_t>(values.size()) % block == 0) {
      values.push_back(static_cast<C>(scale));
      expected.push_back(1);
    }
    values.push_back(static_cast<C>(probe * scale));
    expected.push_back(probe);
  }
  const auto n = static_cast<int64_t>(values.size());
  ASSERT_NE(n % 64, 0);
  const ContextPtr context = CpuContext({.num_threads = 2});
  const Tensor x = Tensor::Zeros({n}, dtype, context);
  std::ranges::copy(values, x.data<C>());
  const QuantizedState state(Tensor::Zeros({n}, DType::kU8, context),
                             Tensor::Zeros(BlockScaleShape(n, block), dtype, context), map, block);
  state.Quantize(x);
  const uint8_t* codes = state.codes().data<uint8_t>();
  const Tensor decoded = state.Dequantize(dtype);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(codes[i], NearestCode(map, expected[i])) << expected[i] << " at " << i;
    ASSERT_EQ(codes[i], map.Encode(expected[i])) << expected[i] << " at " << i;
    ASSERT_EQ(decoded.data<C>()[i], static_cast<C>(map.values()[codes[i]]) * static_cast<C>(scale));
  }
}

TEST(CodeMapTest, KernelsFindTheNearestCode) {
  for (const CodeMap* map : {&CodeMap::Signed(), &CodeMap::Unsigned()}) {
    for (const int64_t block : {256, 2048}) {
      ExpectNearest<float>(*map, DType::kF32, block, 1);
      ExpectNearest<float>(*map, DType::kF32, block, 0x1p40);
      ExpectNearest<double>(*map, DType::kF64, block, 1);
    }
  }
}

// A NaN or infinity, which a step that is not skipped may leave, has the code of the largest value.
TEST(CodeMapTest, NonFiniteRatiosHaveTheLargestCode) {
  for (const float x :
       {std::numeric_limits<float>::quiet_NaN(), 2.0f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(CodeMap::Signed().Encode(x), 255);
    EXPECT_EQ(CodeMap::Signed().Encode(-x), 0);
    EXPECT_EQ(CodeMap::Unsigned().Encode(x), 255);
  }
  const ContextPtr context = CpuContext();
  const Tensor x =
      Tensor::Full({256}, DType::kF32, std::numeric_limits<double>::quiet_NaN(), context);
  const QuantizedState state(Tensor::Zeros({256}, DType::kU8, context),
                             Tensor::Zeros(BlockScaleShape(256, 256), DType::kF32, context),
                             CodeMap::Unsigned(), 256);
  state.Quantize(x);
  for (const double code : Values(state.codes())) ASSERT_EQ(code, 255);
}

}  // namespace code_map_test
}  // namespace apogee::optim
