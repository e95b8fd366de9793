// SPDX-License-Identifier: Apache-2.0

// The reference of a cell's boosted run: the one-rank run, and the errors that rounding can
// explain.
//
//   ReferenceCache references;
//   const Reference& reference = references.Get(cell);
//   // An error above its bound? Other orders of the one-rank run's sums may change as much:
//   references.LookFurther(cell, [&](const Reference& wider) { return Takes(wider, got); });
#ifndef APOGEE_MATRIX_REFERENCE_H_
#define APOGEE_MATRIX_REFERENCE_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "apogee/matrix/plain_run.h"

namespace apogee::matrix {

// The upper limit of every bound: an update that did not happen has an error of 1.
inline constexpr double kLargestBound = 0.9;

// An error above this many bounds is never rounding. In correct 32- and 16-bit cells the largest
// error is two thirds of its bound, except for 2.4 bounds where a vector of GaLore's basis changed
// sign.
inline constexpr double kSearchFactor = 4;

struct Reference {
  PlainResult plain;
  // The largest allowed error of the update, by parameter.
  std::map<std::string, double> bounds;
  // The number of orders that LookFurther has tried, and the processor time that it used.
  int num_further_orders = 0;
  double search_seconds = 0;
};

// Limits for LookFurther, in seconds of the thread's processor time so that neither a busy machine
// nor other jobs change a verdict. The event that it looks for occurs in one of 300 runs of up to
// 30 ms each, and few references need the search. If many do, the cells fail for another reason,
// and more searching only costs time.
struct SearchLimits {
  double seconds_per_reference = 20;
  double seconds_in_all = 30;
};

// The processor time that the searches of some caches have used together.
using SearchSeconds = std::shared_ptr<std::atomic<double>>;
inline SearchSeconds NoSearchSeconds() { return std::make_shared<std::atomic<double>>(0.0); }

class ReferenceCache {
 public:
  explicit ReferenceCache(const SearchLimits& limits = {},
                          SearchSeconds seconds_in_all = NoSearchSeconds())
      : limits_(limits), search_seconds_(std::move(seconds_in_all)) {}

  // The reference of a cell. Cells share it if they agree in optimizer, precision, masters,
  // clipping and workload and, when targets are ignored, in the number of micro-batches. All cells
  // of a cache have one registry of optimizers.
  const Reference& Get(const Cell& cell);

  // Widens the bounds with the results of many more orders of the one-rank run's sums, until
  // `takes(reference)` is true. A few runs usually show how large rounding errors are, but rare
  // events are larger: a vector of GaLore's basis changes sign if two components are nearly the
  // largest. Continues where it stopped for another cell of the same reference. Returns false if
  // `takes` never became true, if the limits were reached, or if the cell's bounds do not come from
  // noise.
  bool LookFurther(const Cell& cell, const std::function<bool(const Reference&)>& takes);

 private:
  Reference& Find(const Cell& cell);

  SearchLimits limits_;
  SearchSeconds search_seconds_;
  std::map<std::string, Reference> references_;
};

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_REFERENCE_H_
