// SPDX-License-Identifier: Apache-2.0

// For tests of decisions on a GPU: a GPU that is held, and steps that the host decides.
//
//   Blocker blocker(*context);          // work queued from here on waits
//   ... what must not wait ...
//   blocker.GoOn();
#ifndef APOGEE_TESTS_OPTIM_DECISION_HELD_GPU_H_
#define APOGEE_TESTS_OPTIM_DECISION_HELD_GPU_H_

#include <future>

#include "apogee/optim/optimizer.h"
#include "apogee/tensor/cuda/runtime/stream_context.cuh"

namespace apogee::optim {

// Under kThrow the host decides.
inline void StepOnHost(Optimizer& optimizer) {
  StepOptions options = optimizer.step_options();
  options.nonfinite = NonFinitePolicy::kThrow;
  optimizer.set_step_options(options);
  try {
    optimizer.step();
  } catch (const Error&) {
  }
}

// Keeps the stream busy until it is told to go on.
class Blocker {
 public:
  explicit Blocker(const DeviceContext& context) {
    const auto wait = [](void* self) { static_cast<Blocker*>(self)->go_on_.get_future().wait(); };
    cuda::CheckCuda(cudaLaunchHostFunc(cuda::StreamContext::Of(context).stream(), wait, this),
                    "cudaLaunchHostFunc");
  }
  void GoOn() { go_on_.set_value(); }

 private:
  std::promise<void> go_on_;
};

}  // namespace apogee::optim

#endif  // APOGEE_TESTS_OPTIM_DECISION_HELD_GPU_H_
