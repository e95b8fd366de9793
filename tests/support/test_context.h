// SPDX-License-Identifier: Apache-2.0

// The context of a test: on the CPU, or on the device that APOGEE_TEST_DEVICE in the environment
// names, such as cuda. Tests that use it run on every device.
//
//   const ContextPtr context = TestContext({.num_threads = 2});
#ifndef APOGEE_TESTS_SUPPORT_TEST_CONTEXT_H_
#define APOGEE_TESTS_SUPPORT_TEST_CONTEXT_H_

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "apogee/core/error.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/make_context.h"

namespace apogee {

inline constexpr const char* kTestDeviceVariable = "APOGEE_TEST_DEVICE";

inline std::string TestDevice() {
  const char* device = std::getenv(kTestDeviceVariable);
  return device == nullptr ? "cpu" : device;
}
inline bool TestsRunOnCuda() { return TestDevice() == "cuda"; }

// All contexts that tests have made and that still exist.
class TestContexts {
 public:
  static TestContexts& Get() {
    static TestContexts contexts;
    return contexts;
  }
  void Add(const ContextPtr& context) {
    std::lock_guard lock(mutex_);
    std::erase_if(contexts_, [](const auto& each) { return each.expired(); });
    contexts_.push_back(context);
  }
  // Waits until the queued work of all of them is done.
  void Synchronize() {
    std::lock_guard lock(mutex_);
    for (const auto& each : contexts_) {
      if (const ContextPtr context = each.lock()) context->Synchronize();
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<DeviceContext>> contexts_;
};

inline ContextPtr TestContext(const CpuOptions& options = {}) {
  const Device device = ValueOrThrow(ParseDevice(TestDevice())).For(0);
  const ContextPtr context = ValueOrThrow(MakeContext(device, options.num_threads));
  TestContexts::Get().Add(context);
  return context;
}

}  // namespace apogee

#endif  // APOGEE_TESTS_SUPPORT_TEST_CONTEXT_H_
