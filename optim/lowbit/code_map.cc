// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/lowbit/code_map.h"

#include <algorithm>
#include <cmath>

namespace apogee::optim {
namespace {

void SetEntry(CodeMap::Planes& planes, size_t index, float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  for (size_t p = 0; p < planes.size(); ++p)
    planes[p][index] = static_cast<uint8_t>(bits >> (8 * p) & 0xff);
}

}  // namespace

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
  }
  SetLines();
}

// Line 0 is for magnitudes up to midpoint 1, line d + 1 for decade d, and line 8 for magnitudes
// above the last midpoint. Decade d ends at 10^(d - 6). There the next midpoint of its line would
// be, but it is one step further, because the values of the next decade are further apart. So line
// d + 1 counts the end as a midpoint, and `last` corrects that until the next line is right.
void CodeMap::SetLines() {
  const size_t zero = signed_ ? 127 : 0;
  const size_t top = 254 - zero;  // the number of the last midpoint
  const auto middle = [&](size_t k) {
    return (static_cast<double>(values_[zero + k]) + static_cast<double>(values_[zero + k + 1])) /
           2;
  };
  // With these places of the last midpoint, some multiple of a quarter of a power of two lies
  // between the midpoint at each border and the next one.
  const double top_place = signed_ ? 1 : 1.5;
  Lines& l = lines_;
  l.stretch = static_cast<float>(top_place / (middle(top) * (1 - 0x1p-20)));
  l.start.fill(0);
  l.slope.fill(0);
  l.last.fill(255);
  const double base = signed_ ? 128 : 256;
  std::array<double, 9> ends{};  // up to where each line is right
  const auto set = [&](size_t line, double start, double slope, double end) {
    l.start[line] = static_cast<float>(base + base * 0x1p-23 * kDoubtful / 2 + start);
    l.slope[line] = static_cast<float>(slope / static_cast<double>(l.stretch));
    ends[line] = end * static_cast<double>(l.stretch);
  };
  const double first = 1 / (middle(1) - middle(0));
  set(0, 1 - first * middle(0), first, middle(1));
  size_t last = 0;  // the number of the midpoint at the end of the decade
  for (size_t d = 0; d < 7; ++d) {
    const size_t count = size_t{1} << (d + (signed_ ? 0 : 1));
    const double end = std::pow(10.0, static_cast<double>(d) - 6);
    const double slope = static_cast<double>(count) / (0.9 * end);
    last += count;
    const double start = static_cast<double>(last) + 1 - slope * end;
    set(d + 1, start, slope, d == 6 ? middle(top) : middle(last + 1));
    if (d < 6) l.last[d + 1] = static_cast<uint8_t>(last);
  }
  // Rises slowly from the count at the last midpoint.
  const double rise = 32 * static_cast<double>(l.stretch);
  set(8, static_cast<double>(top + 1) - 32 * top_place, rise, 2);
  for (size_t i = 0; i < l.choice.size(); ++i) {
    // Where the next bits begin.
    const size_t next = i + 1;
    const double end =
        std::ldexp(1 + static_cast<double>(next % 4) / 4, static_cast<int>(next / 4) - 31);
    size_t line = 0;
    while (line < 8 && end > ends[line] * (1 - 0x1p-21)) ++line;
    l.choice[i] = static_cast<uint8_t>(line);
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
