// SPDX-License-Identifier: Apache-2.0

// StepGate: the decision of a step (skip it? clip by what?) where the GPU made it, and GradFactor,
// the factor that an update multiplies gradients with, known to the host or only there.
//
//   LionArgs args{dtype, decision.grad_scale(), ...};      // a GradFactor
//   const double factor = args.grad_scale;                 // CPU kernels: always known
//   DeviceScale<float> scale(args.grad_scale);             // kernels of a GPU: optim/cuda/gate.cuh
//
// With a gate the host need not wait for the norm of the gradients before it queues the update: the
// kernels read factor and verdict from the GPU's memory. See device_decision.h.
#ifndef APOGEE_OPTIM_STEP_GATE_H_
#define APOGEE_OPTIM_STEP_GATE_H_

#include <cstdint>

#include "apogee/core/error.h"

namespace apogee::optim {

// Lies in the GPU's memory. The fields are those of StepDecision.
struct StepGate {
  double grad_norm;
  double clip_factor;
  double grad_scale;        // clip_factor / loss scale
  int64_t first_nonfinite;  // the first parameter whose gradient is not finite; -1: all are
  bool skip;                // the update must leave weights and states as they are
  bool options_differ;      // between ranks, and `skip` is set for that
};

class GradFactor {
 public:
  // Known: the gate is null.
  constexpr GradFactor(double factor = 1)  // NOLINT: kernels take plain numbers, too
      : factor_(factor) {}
  // `factor` times the gate's grad_scale.
  constexpr GradFactor(double factor, const StepGate* gate) : factor_(factor), gate_(gate) {}
  // The grad_scale of a gate that a kernel has written: known at once where it is the host's.
  static GradFactor Of(const StepGate* gate, bool on_host) {
    return on_host ? GradFactor(gate->grad_scale) : GradFactor(1, gate);
  }

  // Throws Error where only the GPU knows it: an optimizer that reads it on the host must not say
  // DecidesOnDevice().
  operator double() const {  // NOLINT: as above
    APOGEE_CHECK(gate_ == nullptr,
                 "GradFactor: the factor of the gradients is asked for on the host, but lies on "
                 "the GPU; let DecidesOnDevice() of the optimizer return false");
    return factor_;
  }
  constexpr double factor() const { return factor_; }
  constexpr const StepGate* gate() const { return gate_; }

 private:
  double factor_;
  const StepGate* gate_ = nullptr;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_STEP_GATE_H_
