// SPDX-License-Identifier: Apache-2.0

// Part of every build. Events of a GPU are behind EventMarks; in a build without CUDA, no context
// is on a GPU.
#include "apogee/tensor/cuda/runtime/device_clock.h"

#include <chrono>
#include <utility>

#include "apogee/tensor/cuda/runtime/event_marks.h"

namespace apogee {

struct DeviceClock::Impl {
  std::unique_ptr<cuda::EventMarks> events;  // null on the CPU
  std::vector<std::chrono::steady_clock::time_point> marks;
};

DeviceClock::DeviceClock(ContextPtr context)
    : context_(std::move(context)), impl_(std::make_unique<Impl>()) {
  if (!context_->is_host()) impl_->events = cuda::MakeEventMarks(*context_);
}

DeviceClock::~DeviceClock() = default;

void DeviceClock::Mark() {
  if (impl_->events != nullptr) {
    impl_->events->Mark();
  } else {
    impl_->marks.push_back(std::chrono::steady_clock::now());
  }
}

std::vector<double> DeviceClock::Take() {
  if (impl_->events != nullptr) return impl_->events->Take();
  std::vector<double> seconds;
  for (size_t i = 1; i < impl_->marks.size(); ++i) {
    seconds.push_back(std::chrono::duration<double>(impl_->marks[i] - impl_->marks[i - 1]).count());
  }
  impl_->marks.clear();
  return seconds;
}

}  // namespace apogee
