// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/kernels/dynamic_map.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace apogee {
namespace {

// `count` points from 0.1 to 1 in f32 with the same roundings as torch.linspace, because existing
// checkpoints were made with its values. torch.linspace counts the second half from the end,
// computes eight lanes at a time from a fused base as long as two such vectors fit, and single
// points with a fused multiply-add.
std::vector<float> Spaced(int count, MapPoints rounding) {
  constexpr int kLanes = 8;
  const int vectors_end = rounding == MapPoints::kFused ? 0 : count / (2 * kLanes) * (2 * kLanes);
  const float step = (1.0f - 0.1f) / static_cast<float>(count - 1);
  std::vector<float> points(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const int first = i < vectors_end ? i / kLanes * kLanes : i;
    const float base = first < count / 2
                           ? std::fma(step, static_cast<float>(first), 0.1f)
                           : std::fma(-step, static_cast<float>(count - first - 1), 1.0f);
    // The product in f64 is exact. Rounding it prevents the compiler from fusing it with the sum.
    const auto offset = static_cast<float>(static_cast<double>(step) * (i - first));
    points[static_cast<size_t>(i)] = base + offset;
  }
  return points;
}

}  // namespace

std::array<float, 256> DynamicMap(bool is_signed, int max_exponent_bits, int total_bits,
                                  MapPoints points_rounding) {
  const int free_bits = total_bits - 1 - max_exponent_bits;
  std::vector<float> values;
  const auto add_means = [&](int points, int decade) {
    const std::vector<float> bounds = Spaced(points, points_rounding);
    const auto power = static_cast<float>(std::pow(10.0, decade - (max_exponent_bits - 1)));
    for (size_t i = 0; i + 1 < bounds.size(); ++i) {
      const float value = power * ((bounds[i] + bounds[i + 1]) / 2);
      values.push_back(value);
      if (is_signed) values.push_back(-value);
    }
  };
  for (int decade = 0; decade < max_exponent_bits; ++decade) {
    add_means((1 << (decade + free_bits + (is_signed ? 0 : 1))) + 1, decade);
  }
  const int additional = (1 << free_bits) - 1;
  if (additional > 0) add_means(additional + 1, max_exponent_bits - 1);
  values.push_back(0);
  values.push_back(1);
  values.resize(256, 0);
  std::array<float, 256> map{};
  std::ranges::copy(values, map.begin());
  std::ranges::sort(map);
  return map;
}

}  // namespace apogee
