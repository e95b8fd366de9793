// SPDX-License-Identifier: Apache-2.0

// CodeMap: the dynamic code maps of 8-bit optimizer states (Dettmers et al., "8-bit Optimizers via
// Block-wise Quantization", ICLR 2022), with the values of bitsandbytes since 0.41.
//
//   const CodeMap& map = CodeMap::Signed();
//   float value = map.values()[code] * absmax;     // decode
//   uint8_t code = map.Encode(value / absmax);     // the nearest value; ties to the lower code
//
// A map has 256 sorted values: in [-1, 1] if signed (zero is code 127), in [0, 1] if unsigned (zero
// is code 0). They fall into seven decades, each with twice as many evenly spaced values as the one
// below. -1 is not a value; the least is -0.99296875.
#ifndef APOGEE_OPTIM_LOWBIT_CODE_MAP_H_
#define APOGEE_OPTIM_LOWBIT_CODE_MAP_H_

#include <array>
#include <bit>
#include <cstdint>

#include "apogee/tensor/kernels/dynamic_map.h"

namespace apogee::optim {

class CodeMap {
 public:
  static const CodeMap& Signed();
  static const CodeMap& Unsigned();

  const float* values() const { return values_.data(); }
  bool is_signed() const { return signed_; }
  // The table behind EncodeMagnitude.
  const uint32_t* buckets() const { return buckets_.data(); }

  // The code of |x|, counted from zero upwards: the number of midpoints (between adjacent values)
  // below |x|, with |x| clamped to 1. The top 16 bits of |x| choose a bucket that holds at most one
  // midpoint. The bucket's entry has the lower 16 bits of that midpoint and the code below it, so
  // one load and one comparison find the nearest value.
  static constexpr uint32_t EncodeMagnitude(const uint32_t* buckets, float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x) & 0x7fffffffu;
    const uint32_t clamped = bits < kLowest ? kLowest : bits > kHighest ? kHighest : bits;
    const uint32_t entry = buckets[(clamped - kLowest) >> 16];
    return (entry & 0xff) + ((clamped & 0xffff) > (entry >> 8) ? 1u : 0u);
  }
  // The code of x from that of its magnitude. `keep_sign` 1: a value below zero never gets the code
  // of zero, as in bitsandbytes' CUDA optimizers. 0: it may.
  static constexpr uint32_t SignedCode(uint32_t magnitude, float x, uint32_t keep_sign) {
    uint32_t below = magnitude > keep_sign ? magnitude : keep_sign;
    below = below < 127 ? below : 127u;
    const uint32_t negative = 0u - (std::bit_cast<uint32_t>(x) >> 31);  // all bits or none
    return 127u + (magnitude & ~negative) - (below & negative);
  }
  // Tables of the vectorised code (cpu/loops/code_lanes.h). Plane p has byte p of every value.
  using Planes = std::array<std::array<uint8_t, 256>, 4>;
  const Planes& value_planes() const { return value_planes_; }
  // Straight lines that count the midpoints below a magnitude. Within a decade midpoints are evenly
  // spaced, so one line is right for all of it. A line gives the count plus a fraction, both
  // computed in f32. Near a midpoint rounding may change the count, so fractions below kDoubtful
  // (in units of the last place) tell nothing; lines are raised by half of that.
  struct Lines {
    // Magnitudes are multiplied by this first; bits 21 to 27 then tell the decades apart.
    float stretch;
    // The line for these bits. Right for magnitudes of at least 2^-24, stretched.
    alignas(64) std::array<uint8_t, 128> choice;
    // start + slope * magnitude is the count plus 128 (signed) or 256, and the fraction, which
    // therefore has 16 or 15 bits.
    alignas(64) std::array<float, 16> start, slope;
    // Of each line, the last count that is right: last + 1 stands for last, and all above for
    // last + 1.
    alignas(16) std::array<uint8_t, 16> last;
  };
  static constexpr int kDoubtful = 8;
  const Lines& lines() const { return lines_; }
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
  Lines lines_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_LOWBIT_CODE_MAP_H_
