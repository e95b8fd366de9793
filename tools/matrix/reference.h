// SPDX-License-Identifier: Apache-2.0

// What a cell's boosted run is judged by: the one-rank run, and the errors that rounding allows.
//
//   ReferenceCache references;
//   const Reference& reference = references.Get(cell);
//   ... an error above its bound? Perhaps the sums of the one-rank run do the same in other orders:
//   references.LookFurther(cell, [&](const Reference& wider) { return Takes(wider, got); });
#ifndef APOGEE_TOOLS_MATRIX_REFERENCE_H_
#define APOGEE_TOOLS_MATRIX_REFERENCE_H_

#include <functional>
#include <map>
#include <string>

#include "apogee/tools/matrix/plain_run.h"

namespace apogee::tools {

// Whatever the noise: an update that did not happen has an error of 1.
inline constexpr double kLargestBound = 0.9;

// Errors above so many bounds are never rounding. Of honest cells in 32 and 16 bits the largest
// error is two thirds of its bound, but for a vector of GaLore's basis that turned around: 2.4
// bounds.
inline constexpr double kSearchFactor = 4;

struct Reference {
  PlainResult plain;
  // The error of the update that is allowed, by parameter.
  std::map<std::string, double> bounds;
  // What LookFurther has tried, and the processor time that it took.
  int num_further_orders = 0;
  double search_seconds = 0;
};

// Of LookFurther, in seconds of processor time, so that a busy machine does not change a verdict.
// The event that it is for comes in one of 300 runs, which take up to 30 ms each; of few
// references, unless cells are red for another reason, and then more searching only costs time.
struct SearchLimits {
  double seconds_per_reference = 20;
  double seconds_in_all = 30;
};

class ReferenceCache {
 public:
  explicit ReferenceCache(const SearchLimits& limits = {}) : limits_(limits) {}

  // The reference depends on the optimizer, precision, masters, clipping and workload alone, and
  // where targets are ignored on the number of micro-batches.
  const Reference& Get(const Cell& cell);

  // Rounding seldom does more than a few runs show: a vector of GaLore's basis turns around where
  // two components are nearly the largest. Widens the bounds by what many more orders of the
  // one-rank run's sums change, until `takes(reference)`. Goes on where it stopped for another cell
  // of the same reference. False: it never did, the limits were reached, or the cell's bounds are
  // not made of noise.
  bool LookFurther(const Cell& cell, const std::function<bool(const Reference&)>& takes);

 private:
  Reference& Find(const Cell& cell);

  SearchLimits limits_;
  double search_seconds_ = 0;
  std::map<std::string, Reference> references_;
};

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_MATRIX_REFERENCE_H_
