// SPDX-License-Identifier: Apache-2.0

// The time of each kernel of a function that calls many, such as a step of an optimizer.
//
//   KernelTimes times(context);
//   for (int i = 0; i < 9; ++i) times.Run([&] { optimizer->step(); });
//   for (const auto& [name, seconds] : times.Medians()) ...
//
// Hears of the context's kernels (core/kernel_listener.h) and marks the end of each in the queue. A
// gap in which the GPU waits for the host counts for the kernel after it.
#ifndef APOGEE_BENCH_GPU_KERNEL_TIMES_H_
#define APOGEE_BENCH_GPU_KERNEL_TIMES_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "apogee/core/kernel_listener.h"
#include "apogee/tensor/cuda/runtime/device_clock.h"

namespace apogee::bench {

class KernelTimes : public KernelListener {
 public:
  explicit KernelTimes(const ContextPtr& context);
  void OnKernel(const KernelCall& call) override;
  // Calls fn once and adds its times.
  void Run(const std::function<void()>& fn);
  // By the kernel's name: seconds of all its calls in a run, the median over the runs.
  std::map<std::string, double> Medians() const;

 private:
  ContextPtr context_;
  DeviceClock clock_;
  std::vector<std::string> names_;
  std::map<std::string, std::vector<double>> runs_;
};

}  // namespace apogee::bench

#endif  // APOGEE_BENCH_GPU_KERNEL_TIMES_H_
