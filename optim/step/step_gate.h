// SPDX-License-Identifier: Apache-2.0

// StepGate: the decision of a step (whether to skip it, the clip factor) in the memory of the GPU
// that made it. GradFactor: the factor by which an update multiplies gradients, known on the host
// or only in a StepGate. NormKind: the norm that a decision is about.
//
//   LionArgs args{dtype, decision.grad_scale(), ...};   // a GradFactor
//   const double factor = args.grad_scale;              // CPU kernels: always known
//   DeviceScale<float> scale(args.grad_scale);          // GPU kernels: optim/cuda/device/gate.cuh
//
// With a gate, the host need not wait for the norm of the gradients before it queues the update:
// the kernels read factor and decision from the GPU's memory. See device_decision.h.
#ifndef APOGEE_OPTIM_STEP_STEP_GATE_H_
#define APOGEE_OPTIM_STEP_STEP_GATE_H_

#include <cstdint>

#include "apogee/core/error.h"

namespace apogee::optim {

enum class NormKind { kL2, kL1, kMax };

// In the GPU's memory. See StepDecision for the fields.
struct StepGate {
  double grad_norm;
  double clip_factor;
  double grad_scale;        // clip_factor / loss scale
  int64_t first_nonfinite;  // index of the first gradient that is not finite; -1: all are finite
  bool skip;                // the update must leave weights and states unchanged
  bool options_differ;      // options differ between ranks; `skip` is then set, too
};

class GradFactor {
 public:
  // A factor that the host knows; the gate is null.
  constexpr GradFactor(double factor = 1)  // NOLINT: kernels take plain numbers, too
      : factor_(factor) {}
  // `factor` times the gate's grad_scale.
  constexpr GradFactor(double factor, const StepGate* gate) : factor_(factor), gate_(gate) {}
  // The gate's clip_factor.
  static constexpr GradFactor ClipOnly(const StepGate* gate) {
    GradFactor factor(1, gate);
    factor.clip_only_ = true;
    return factor;
  }
  // The grad_scale of a gate that a kernel has written. In host memory it is known at once.
  static GradFactor Of(const StepGate* gate, bool on_host) {
    return on_host ? GradFactor(gate->grad_scale) : GradFactor(1, gate);
  }

  // Throws Error if only the GPU knows the factor. An optimizer that reads it on the host must
  // clear OptimizerTraits::decides_on_device.
  operator double() const {  // NOLINT: as above
    APOGEE_CHECK(gate_ == nullptr,
                 "GradFactor: the host reads the factor of the gradients, but only the GPU knows "
                 "it; clear OptimizerTraits::decides_on_device of the optimizer");
    return factor_;
  }
  constexpr double factor() const { return factor_; }
  constexpr const StepGate* gate() const { return gate_; }
  constexpr bool clip_only() const { return clip_only_; }

 private:
  double factor_;
  const StepGate* gate_ = nullptr;
  bool clip_only_ = false;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_STEP_STEP_GATE_H_
