// SPDX-License-Identifier: Apache-2.0

#include "apogee/plan/machine/samples.h"

#include <algorithm>

#include "apogee/plan/machine/fit.h"

namespace apogee::plan {
namespace {

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

void Samples::OnKernel(const KernelCall& call) {
  const Clock::time_point now = Clock::now();
  if (!paused_) {
    const double seconds = std::chrono::duration<double>(now - last_).count();
    seconds_[KernelKey(call)][{call.flops, call.bytes}].push_back(std::max(seconds, 1e-9));
  }
  last_ = Clock::now();
}

void Samples::Restart(bool paused) {
  paused_ = paused;
  last_ = Clock::now();
}

void Samples::AddTo(RateSet& set) const {
  std::vector<MeasuredCall> products, passes;
  for (const auto& [name, works] : seconds_) {
    std::vector<MeasuredCall> calls;
    for (const auto& [work, seconds] : works) {
      calls.push_back({.flops = work.first, .bytes = work.second, .seconds = Median(seconds)});
      (work.first > 0 ? products : passes).push_back(calls.back());
    }
    set.kernels[name] = Fit(calls);
  }
  set.other = Fit(passes);
  set.other.seconds_per_flop = Fit(products).seconds_per_flop;
}

}  // namespace apogee::plan
