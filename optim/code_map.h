// SPDX-License-Identifier: Apache-2.0

// The dynamic code maps of 8-bit optimizer states (Dettmers et al., "8-bit Optimizers via
// Block-wise Quantization", ICLR 2022), with the values of bitsandbytes since 0.41.
//
//   const CodeMap& map = CodeMap::Signed();
//   float value = map.values()[code] * absmax;              // decode
//   uint8_t code = map.Encode(value / absmax);              // the nearest value, ties to the lower
//   code
//
// 256 sorted values in [-1, 1] (signed, zero is code 127) or [0, 1] (unsigned, zero is code 0).
// Seven decades, each with twice as many evenly spaced values as the one below. -1 is not a value:
// the least is -0.99296875.
#ifndef APOGEE_OPTIM_CODE_MAP_H_
#define APOGEE_OPTIM_CODE_MAP_H_

#include <array>
#include <bit>
#include <cstdint>

namespace apogee::optim {

// The generator: 2^total_bits values, zeros up to 256, sorted. Computed in f32 as the reference
// does.
std::array<float, 256> DynamicMap(bool is_signed, int max_exponent_bits, int total_bits);

class CodeMap {
 public:
  static const CodeMap& Signed();
  static const CodeMap& Unsigned();

  const float* values() const { return values_.data(); }
  bool is_signed() const { return signed_; }
  // The table behind EncodeMagnitude.
  const uint32_t* buckets() const { return buckets_.data(); }

  // Number of midpoints below |x|, the top one clamped: codes count from zero upwards. A
  // magnitude's top 16 bits choose a bucket that holds at most one midpoint; the entry has that
  // midpoint's lower 16 bits and the code below it, so that one load and one comparison find the
  // nearest value.
  static constexpr uint32_t EncodeMagnitude(const uint32_t* buckets, float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x) & 0x7fffffffu;
    const uint32_t clamped = bits < kLowest ? kLowest : bits > kHighest ? kHighest : bits;
    const uint32_t entry = buckets[(clamped - kLowest) >> 16];
    return (entry & 0xff) + ((clamped & 0xffff) > (entry >> 8) ? 1u : 0u);
  }
  // The code of x from that of its magnitude. `keep_sign` 1: a value below zero does not get the
  // code of zero (bitsandbytes' CUDA optimizers); else 0.
  static constexpr uint32_t SignedCode(uint32_t magnitude, float x, uint32_t keep_sign) {
    uint32_t below = magnitude > keep_sign ? magnitude : keep_sign;
    below = below < 127 ? below : 127u;
    const uint32_t negative = 0u - (std::bit_cast<uint32_t>(x) >> 31);  // all bits or none
    return 127u + (magnitude & ~negative) - (below & negative);
  }
  // The same with tables in registers (cpu/code_lanes.h). Planes: byte p of every entry.
  using Planes = std::array<std::array<uint8_t, 256>, 4>;
  const Planes& value_planes() const { return value_planes_; }
  // Midpoint k lies between the values k and k + 1 from zero.
  const Planes& midpoint_planes() const { return midpoint_planes_; }
  // Within a decade midpoints are evenly spaced, so that their number is a line of the magnitude;
  // the spacing grows from decade to decade, so that of two lines the lower one holds. Per binade
  // from 2^-23 on, there are the lines that hold at its two ends, in 1/256: `start` half above the
  // number at the binade's beginning, and the `rise` over all of it. Where the result rounds down
  // to k, the number of midpoints below the magnitude is k or k + 1.
  struct Line {
    alignas(64) std::array<uint16_t, 32> start, rise;
  };
  const std::array<Line, 2>& lines() const { return lines_; }
  static constexpr uint32_t kLowest = (127u - 23u) << 23;  // bits of 2^-23, below every midpoint
  static constexpr uint32_t kHighest = 127u << 23;         // bits of 1
  static constexpr int kBuckets = static_cast<int>((kHighest - kLowest) >> 16) + 1;

  uint8_t Encode(float x) const {
    return static_cast<uint8_t>(signed_ ? SignedCode(EncodeMagnitude(buckets(), x), x, 0)
                                        : EncodeMagnitude(buckets(), x));
  }

 private:
  explicit CodeMap(bool is_signed);

  void SetLines();

  bool signed_;
  std::array<float, 256> values_;
  std::array<uint32_t, kBuckets> buckets_;
  alignas(64) Planes value_planes_;
  alignas(64) Planes midpoint_planes_;
  std::array<Line, 2> lines_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CODE_MAP_H_
