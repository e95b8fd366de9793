// SPDX-License-Identifier: Apache-2.0

// Samples: the measured calls of kernels. Private to plan.
//
//   Samples samples;
//   context->set_kernel_listener(&samples);
//   ... train ...
//   RateSet set;
//   samples.AddTo(set);
#ifndef APOGEE_PLAN_MACHINE_SAMPLES_H_
#define APOGEE_PLAN_MACHINE_SAMPLES_H_

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apogee/core/kernel_listener.h"
#include "apogee/plan/machine/rates.h"

namespace apogee::plan {

class Samples : public KernelListener {
 public:
  void OnKernel(const KernelCall& call) override;
  // The next kernel's time begins now. While paused, calls are not kept.
  void Restart(bool paused);
  // Fits the rates of all kernels. Calls of the same work count with their median.
  void AddTo(RateSet& set) const;

 private:
  using Clock = std::chrono::steady_clock;
  using Work = std::pair<double, double>;  // flops and bytes

  std::map<std::string, std::map<Work, std::vector<double>>> seconds_;
  Clock::time_point last_ = Clock::now();
  bool paused_ = false;
};

}  // namespace apogee::plan

#endif  // APOGEE_PLAN_MACHINE_SAMPLES_H_
