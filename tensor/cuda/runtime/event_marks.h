// SPDX-License-Identifier: Apache-2.0

// Marks in the queue of a GPU's context, for DeviceClock, without CUDA's headers.
#ifndef APOGEE_TENSOR_CUDA_RUNTIME_EVENT_MARKS_H_
#define APOGEE_TENSOR_CUDA_RUNTIME_EVENT_MARKS_H_

#include <memory>
#include <vector>

#include "apogee/core/device_context.h"

namespace apogee::cuda {

class EventMarks {
 public:
  virtual ~EventMarks() = default;
  // As of DeviceClock.
  virtual void Mark() = 0;
  virtual std::vector<double> Take() = 0;
};

// `context` is a GPU's and outlives the marks.
std::unique_ptr<EventMarks> MakeEventMarks(const DeviceContext& context);

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_RUNTIME_EVENT_MARKS_H_
