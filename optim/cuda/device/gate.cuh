// SPDX-License-Identifier: Apache-2.0

// How kernels read a GradFactor. Private to optim/cuda.
//
//   struct LarsStep {
//     DeviceScale<C> grad_scale;
//     __device__ bool Open() { return grad_scale.Open(); }    // first, on the thread's own copy
//     ... grad_scale * grad.at[k] ...
//   };
#ifndef APOGEE_OPTIM_CUDA_DEVICE_GATE_CUH_
#define APOGEE_OPTIM_CUDA_DEVICE_GATE_CUH_

#include "apogee/optim/step/step_gate.h"

namespace apogee::optim::cuda {

// The factor in f64, read from the gate at each use.
struct DeviceFactor {
  double factor;
  const StepGate* gate;
  bool clip_only;

  explicit constexpr DeviceFactor(const GradFactor& from)
      : factor(from.factor()), gate(from.gate()), clip_only(from.clip_only()) {}
  __device__ bool Skips() const { return gate != nullptr && gate->skip; }
  __device__ double value() const {
    if (gate == nullptr) return factor;
    return factor * (clip_only ? gate->clip_factor : gate->grad_scale);
  }
};

// The factor as a C, read from the gate once by Open().
template <typename C>
struct DeviceScale {
  DeviceFactor source;
  C value;

  explicit constexpr DeviceScale(const GradFactor& from)
      : source(from), value(static_cast<C>(from.factor())) {}
  // Returns false if the step is skipped.
  __device__ bool Open() {
    if (source.gate != nullptr) value = static_cast<C>(source.value());
    return !source.Skips();
  }
  __device__ operator C() const { return value; }
};

// Opens the gate of a step that has one; a step without gradients needs none. False: skipped.
template <typename Step>
__device__ __forceinline__ bool OpenGate(Step& step) {
  if constexpr (requires { step.Open(); }) return step.Open();
  return true;
}

}  // namespace apogee::optim::cuda

#endif  // APOGEE_OPTIM_CUDA_DEVICE_GATE_CUH_
