// SPDX-License-Identifier: Apache-2.0

#include "apogee/bench/gpu/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "apogee/tensor/cuda/runtime/device_clock.h"
#include "apogee/tensor/tensor.h"

namespace apogee::bench {

std::function<void()> CopyOf(double bytes, const ContextPtr& context) {
  const auto size = static_cast<int64_t>(bytes / 2);
  const Tensor from = Tensor::Zeros({size}, DType::kU8, context);
  const Tensor to = Tensor::Empty({size}, DType::kU8, context);
  return [=] { context->CopyWithin(to.raw(), from.raw(), size); };
}

std::vector<double> Interleaved(const ContextPtr& context,
                                const std::vector<std::function<void()>>& sides,
                                const MeasureOptions& options) {
  DeviceClock clock(context);
  const auto sample = [&](size_t side, int64_t calls) {
    clock.Mark();
    for (int64_t i = 0; i < calls; ++i) sides[side]();
    clock.Mark();
    return clock.Take().front() / static_cast<double>(calls);
  };
  // The warm-up also finds how many calls make a sample.
  std::vector<double> last(sides.size(), 0);
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  do {
    for (size_t side = 0; side < sides.size(); ++side) {
      if (sides[side]) last[side] = sample(side, 1);
    }
  } while (std::chrono::duration<double>(Clock::now() - start).count() < options.warm_seconds);
  std::vector<std::vector<double>> times(sides.size());
  for (int64_t repeat = 0; repeat < options.repeats; ++repeat) {
    for (size_t side = 0; side < sides.size(); ++side) {
      if (!sides[side]) continue;
      const double calls =
          std::clamp(options.sample_seconds / std::max(last[side], 1e-9), 1., 100.);
      times[side].push_back(sample(side, static_cast<int64_t>(calls)));
    }
  }
  std::vector<double> medians;
  for (const std::vector<double>& of_side : times) medians.push_back(Median(of_side));
  return medians;
}

JsonLine::JsonLine(const std::string& bench) : line_("{\"bench\": \"" + bench + "\"") {}

JsonLine::~JsonLine() {
  std::printf("%s}\n", line_.c_str());
  std::fflush(stdout);
}

JsonLine& JsonLine::Text(const char* key, const std::string& value) {
  line_ += std::string(", \"") + key + "\": \"" + value + "\"";
  return *this;
}

JsonLine& JsonLine::Integer(const char* key, int64_t value) {
  line_ += std::string(", \"") + key + "\": " + std::to_string(value);
  return *this;
}

JsonLine& JsonLine::Number(const char* key, double value) {
  char text[40] = "null";
  if (std::isfinite(value)) std::snprintf(text, sizeof(text), "%.6g", value);
  line_ += std::string(", \"") + key + "\": " + text;
  return *this;
}

}  // namespace apogee::bench
