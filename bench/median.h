// SPDX-License-Identifier: Apache-2.0

// The median of the benchmarks' samples.
#ifndef APOGEE_BENCH_MEDIAN_H_
#define APOGEE_BENCH_MEDIAN_H_

#include <algorithm>
#include <vector>

namespace apogee::bench {

// Of an even number of values the mean of the middle two; of none 0.
inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace apogee::bench

#endif  // APOGEE_BENCH_MEDIAN_H_
