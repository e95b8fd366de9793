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

struct Reference {
  PlainResult plain;
  // The error of the update that is allowed, by parameter.
  std::map<std::string, double> bounds;
};

class ReferenceCache {
 public:
  // The reference depends on the optimizer, precision, masters, clipping and workload alone, and
  // its bounds on whether ranks share layers.
  const Reference& Get(const Cell& cell);

  // Rounding seldom does more than a few runs show: a vector of GaLore's basis turns around where
  // two components are nearly the largest. Widens the bounds by what many more orders of the
  // one-rank run's sums change, until `takes(reference)`. False: it never did, or the cell's bounds
  // are not made of noise.
  bool LookFurther(const Cell& cell, const std::function<bool(const Reference&)>& takes);

 private:
  Reference& Find(const Cell& cell);

  std::map<std::string, Reference> references_;
};

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_MATRIX_REFERENCE_H_
