// SPDX-License-Identifier: Apache-2.0

// How ranks that step together notice that their options differ: one that sets a learning rate that
// the others do not set would drift away from them, in silence. A digest of all options travels
// with a collective that every step has anyway: phase 0 of a step (GradMarks), or what a
// data-parallel backward ends with (DdpPlugin).
//
//   double slots[kNumDigestSlots];
//   PutDigest(optimizer.OptionsDigest(), /*maxima=*/false, slots);
//   ... reduced over the ranks, a sum or a maximum each ...
//   if (!DigestsAgree(/*maxima=*/false, slots)) ThrowOptionsDiffer(optimizer, group);
//
// 40 bits of the digest count. Sums of a's and of their squares say whether all a are the same: n
// sum a^2 = (sum a)^2; exact in f64, for up to 8192 ranks. Maxima: max a = -max -a, shifted, for
// maxima of statistics are of numbers >= 0.
#ifndef APOGEE_OPTIM_OPTIONS_AGREEMENT_H_
#define APOGEE_OPTIM_OPTIONS_AGREEMENT_H_

#include <cstdint>

namespace apogee::comm {
class Group;
}

namespace apogee::optim {

class Optimizer;

inline constexpr int kNumDigestSlots = 5;

// Half of the bits that count, a whole number.
constexpr double DigestHalf(uint64_t digest, int half) {
  return static_cast<double>((digest >> (20 * half)) & 0xfffff);
}

constexpr void PutDigest(uint64_t digest, bool maxima, double* slots) {
  slots[0] = 1;  // sums: the ranks
  for (int half = 0; half < 2; ++half) {
    const double a = DigestHalf(digest, half);
    slots[1 + 2 * half] = a;
    slots[2 + 2 * half] = maxima ? 0xfffff - a : a * a;
  }
}

// Also in kernels (--expt-relaxed-constexpr).
constexpr bool DigestsAgree(bool maxima, const double* slots) {
  for (int half = 0; half < 2; ++half) {
    const double a = slots[1 + 2 * half], b = slots[2 + 2 * half];
    if (maxima ? a + b != 0xfffff : slots[0] * b != a * a) return false;
  }
  return true;
}

// Throws the same Error on every rank of `group`, which all call: which option differs, and what it
// is on which rank. Null, where nobody knows the ranks: says that something differs.
[[noreturn]] void ThrowOptionsDiffer(const Optimizer& optimizer, comm::Group* group);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_OPTIONS_AGREEMENT_H_
