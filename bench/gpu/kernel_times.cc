// SPDX-License-Identifier: Apache-2.0

#include "apogee/bench/gpu/kernel_times.h"

#include "apogee/bench/median.h"

namespace apogee::bench {

void KernelTimes::OnKernel(const KernelCall& call) {
  clock_.Mark();
  names_.push_back(call.name);
}

KernelTimes::KernelTimes(const ContextPtr& context) : context_(context), clock_(context) {}

void KernelTimes::Run(const std::function<void()>& fn) {
  names_.clear();
  context_->set_kernel_listener(this);
  clock_.Mark();
  try {
    fn();
  } catch (...) {
    context_->set_kernel_listener(nullptr);
    throw;
  }
  context_->set_kernel_listener(nullptr);
  const std::vector<double> seconds = clock_.Take();
  std::map<std::string, double> sums;
  for (size_t i = 0; i < names_.size(); ++i) sums[names_[i]] += seconds[i];
  for (const auto& [name, sum] : sums) runs_[name].push_back(sum);
}

std::map<std::string, double> KernelTimes::Medians() const {
  std::map<std::string, double> medians;
  for (const auto& [name, sums] : runs_) medians[name] = Median(sums);
  return medians;
}

}  // namespace apogee::bench
