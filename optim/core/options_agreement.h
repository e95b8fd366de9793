// SPDX-License-Identifier: Apache-2.0

// Detects that ranks that step together have different options. A rank with another learning rate
// than the others, for example, would silently drift away from them. A digest of all options is
// sent along in an all-reduce that every step has anyway: that of the decision phase (GradMarks),
// or the one at the end of a data-parallel backward (DdpPlugin).
//
//   double slots[kNumDigestSlots];
//   PutDigest(optimizer.OptionsDigest(), /*maxima=*/false, slots);
//   ... all-reduce slots with sum (or with max, if maxima) ...
//   if (!DigestsAgree(/*maxima=*/false, slots)) optimizer.ThrowOptionsDiffer(group);
//
// Only 40 bits of the digest are compared, in two halves. With a the half of each of n ranks:
//   sums    all a are the same if n sum(a^2) = (sum a)^2; exact in f64 for up to 8192 ranks
//   maxima  all a are the same if max(a) = -max(-a); -a is sent as 0xfffff - a, because maxima of
//           statistics must be of numbers >= 0
#ifndef APOGEE_OPTIM_CORE_OPTIONS_AGREEMENT_H_
#define APOGEE_OPTIM_CORE_OPTIONS_AGREEMENT_H_

#include <cstdint>

namespace apogee::optim {

inline constexpr int kNumDigestSlots = 5;

// One half (0 or 1) of the bits that are compared, as a whole number.
constexpr double DigestHalf(uint64_t digest, int half) {
  return static_cast<double>((digest >> (20 * half)) & 0xfffff);
}

constexpr void PutDigest(uint64_t digest, bool maxima, double* slots) {
  slots[0] = 1;  // adds up to the number of ranks
  for (int half = 0; half < 2; ++half) {
    const double a = DigestHalf(digest, half);
    slots[1 + 2 * half] = a;
    slots[2 + 2 * half] = maxima ? 0xfffff - a : a * a;
  }
}

// Kernels call it, too (--expt-relaxed-constexpr).
constexpr bool DigestsAgree(bool maxima, const double* slots) {
  for (int half = 0; half < 2; ++half) {
    const double a = slots[1 + 2 * half], b = slots[2 + 2 * half];
    if (maxima ? a + b != 0xfffff : slots[0] * b != a * a) return false;
  }
  return true;
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CORE_OPTIONS_AGREEMENT_H_
