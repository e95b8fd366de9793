// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/cuda/runtime/event_marks.h"

#include "apogee/tensor/cuda/runtime/stream_context.cuh"

namespace apogee::cuda {
namespace {

class Events : public EventMarks {
 public:
  explicit Events(const StreamContext& gpu) : gpu_(gpu) {}
  ~Events() override {
    gpu_.Use();
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  }

  void Mark() override {
    gpu_.Use();
    if (used_ == events_.size()) {
      cudaEvent_t event = nullptr;
      CheckCuda(cudaEventCreateWithFlags(&event, cudaEventDefault), "make an event");
      events_.push_back(event);
    }
    CheckCuda(cudaEventRecord(events_[used_++], gpu_.stream()), "record an event");
  }

  std::vector<double> Take() override {
    gpu_.Synchronize();
    std::vector<double> seconds;
    for (size_t i = 1; i < used_; ++i) {
      float ms = 0;
      CheckCuda(cudaEventElapsedTime(&ms, events_[i - 1], events_[i]), "time between events");
      seconds.push_back(1e-3 * static_cast<double>(ms));
    }
    used_ = 0;
    return seconds;
  }

 private:
  const StreamContext& gpu_;
  std::vector<cudaEvent_t> events_;  // kept for the next marks
  size_t used_ = 0;
};

}  // namespace

std::unique_ptr<EventMarks> MakeEventMarks(const DeviceContext& context) {
  return std::make_unique<Events>(StreamContext::Of(context));
}

}  // namespace apogee::cuda
