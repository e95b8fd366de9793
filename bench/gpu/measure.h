// SPDX-License-Identifier: Apache-2.0

// How gpu_bench measures. Sides that are compared take turns, so that clocks, heat and other users
// of the GPU hit them alike. The GPU first works for --warm-ms, because it is several times slower
// when it comes from idle. Times are those of the device (DeviceClock), and the median counts.
//
//   const std::vector<double> seconds = Interleaved(context, {ours, theirs}, options);
#ifndef APOGEE_BENCH_GPU_MEASURE_H_
#define APOGEE_BENCH_GPU_MEASURE_H_

#include <functional>
#include <string>
#include <vector>

#include "apogee/bench/median.h"
#include "apogee/core/device_context.h"

namespace apogee::bench {

struct MeasureOptions {
  int64_t repeats = 9;
  double warm_seconds = 0.3;
  // A sample is as many calls of a side as take this long, so that the time of an event is small
  // against it.
  double sample_seconds = 2e-3;
};

// The median seconds of one call of each side. Empty sides get 0.
std::vector<double> Interleaved(const ContextPtr& context,
                                const std::vector<std::function<void()>>& sides,
                                const MeasureOptions& options);

// A copy within the device that reads and writes `bytes` together.
std::function<void()> CopyOf(double bytes, const ContextPtr& context);

// One line of JSON on stdout, flushed: a run that dies later leaves it.
class JsonLine {
 public:
  explicit JsonLine(const std::string& bench);
  ~JsonLine();
  JsonLine(const JsonLine&) = delete;
  JsonLine& operator=(const JsonLine&) = delete;
  JsonLine& Text(const char* key, const std::string& value);
  JsonLine& Integer(const char* key, int64_t value);
  JsonLine& Number(const char* key, double value);  // null if it is not finite

 private:
  std::string line_;
};

}  // namespace apogee::bench

#endif  // APOGEE_BENCH_GPU_MEASURE_H_
