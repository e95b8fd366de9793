// SPDX-License-Identifier: Apache-2.0

// DeviceClock: how long the work takes that a context has queued, measured where it runs.
//
//   DeviceClock clock(context);
//   clock.Mark();
//   y = ops::Add(a, b);
//   clock.Mark();
//   std::vector<double> seconds = clock.Take();   // one number; waits for the GPU
//
// On a GPU a mark is an event in the context's queue: the host does not wait, and its own time does
// not count unless the queue runs empty. On the CPU, where a kernel is done when its call returns,
// a mark reads the host's clock. Not for captures of a graph. For benchmarks; not installed.
#ifndef APOGEE_TENSOR_CUDA_RUNTIME_DEVICE_CLOCK_H_
#define APOGEE_TENSOR_CUDA_RUNTIME_DEVICE_CLOCK_H_

#include <memory>
#include <vector>

#include "apogee/core/device_context.h"

namespace apogee {

class DeviceClock {
 public:
  // `context` must be on the CPU or on a GPU of this build.
  explicit DeviceClock(ContextPtr context);
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  void Mark();
  // The seconds between each mark and the next one, and forgets the marks. Throws Error if the GPU
  // has failed.
  std::vector<double> Take();

 private:
  struct Impl;
  ContextPtr context_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace apogee

#endif  // APOGEE_TENSOR_CUDA_RUNTIME_DEVICE_CLOCK_H_
