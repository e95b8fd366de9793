// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/lowbit/code_map.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace apogee::optim {
namespace {

// `count` points from 0.1 to 1 in f32 with the same roundings as torch.linspace, because existing
// checkpoints were made with its values. torch.linspace counts the second half from the end,
// computes eight lanes at a time from a fused base as long as two such vectors fit, and single
// points with a fused multiply-add.
std::vector<float> Spaced(int count) {
  constexpr int kLanes = 8;
  const int vectors_end = count / (2 * kLanes) * (2 * kLanes);
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

void SetEntry(CodeMap::Planes& planes, size_t index, float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  for (size_t p = 0; p < planes.size(); ++p)
    planes[p][index] = static_cast<uint8_t>(bits >> (8 * p) & 0xff);
}

}  // namespace

std::array<float, 256> DynamicMap(bool is_signed, int max_exponent_bits, int total_bits) {
  const int free_bits = total_bits - 1 - max_exponent_bits;
  std::vector<float> values;
  const auto add_means = [&](int points, int decade) {
    const std::vector<float> bounds = Spaced(points);
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

CodeMap::CodeMap(bool is_signed) : signed_(is_signed), values_(DynamicMap(is_signed, 7, 8)) {
  const size_t zero = is_signed ? 127 : 0;
  const size_t top = 255 - zero;  // the code of 1, counted from zero
  size_t below = 0;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const uint32_t first = kLowest + (static_cast<uint32_t>(b) << 16);
    uint32_t threshold = 0xffff;  // no midpoint in this bucket
    const auto code = static_cast<uint32_t>(below);
    if (below < top) {
      const float middle = (values_[zero + below] + values_[zero + below + 1]) / 2;
      const uint32_t bits = std::bit_cast<uint32_t>(middle);
      if (bits < first + 0x10000u) {
        threshold = bits & 0xffffu;
        ++below;
      }
    }
    buckets_[b] = threshold << 8 | code;
  }
  for (size_t code = 0; code < values_.size(); ++code) {
    SetEntry(value_planes_, code, values_[code]);
    SetEntry(midpoint_planes_, code,
             code < top ? (values_[zero + code] + values_[zero + code + 1]) / 2
                        : std::numeric_limits<float>::infinity());
  }
  SetLines();
}

void CodeMap::SetLines() {
  // Decade d ends at 10^(d - 6), between the midpoints of numbers last - 1 and last + 1.
  struct Decade {
    double slope, start;
    double At(double x) const { return start + slope * x; }
  };
  std::array<Decade, 7> decades{};
  double last = 0;
  for (size_t d = 0; d < decades.size(); ++d) {
    const double count = std::ldexp(1.0, static_cast<int>(d) + (signed_ ? 0 : 1));
    const double end = std::pow(10.0, static_cast<double>(d) - 6);
    const double slope = count / (0.9 * end);
    last += count;
    decades[d] = {slope, last - slope * end};
  }
  for (size_t binade = 0; binade < 32; ++binade) {
    const double begin = std::ldexp(1.0, std::min(static_cast<int>(binade), 24) - 23);
    const double length = begin < 1 ? begin : 0;  // 1 is the greatest magnitude
    for (size_t end = 0; end < 2; ++end) {
      const double x = begin + length * static_cast<double>(end);
      const Decade& line =
          *std::ranges::min_element(decades, {}, [x](const Decade& d) { return d.At(x); });
      lines_[end].start[binade] = static_cast<uint16_t>(std::lround(256 * (line.At(begin) + 0.5)));
      lines_[end].rise[binade] = static_cast<uint16_t>(std::lround(256 * line.slope * length));
    }
  }
}

const CodeMap& CodeMap::Signed() {
  static const CodeMap map(true);
  return map;
}
const CodeMap& CodeMap::Unsigned() {
  static const CodeMap map(false);
  return map;
}

}  // namespace apogee::optim
