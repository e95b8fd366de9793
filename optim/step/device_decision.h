// SPDX-License-Identifier: Apache-2.0

// DeviceDecision: the decision phase of a step on a GPU, without the host waiting for it. Each
// optimizer has one; private to optim.
//
//   auto decision = MakeDeviceDecision(context);
//   decision->Mark(NormKind::kL2, chunks, marks);              // norms and finite flags
//   reducer.Reduce(...);                                       // over the ranks
//   const StepGate* gate = decision->Decide(settings, marks, num_parameters);
//   ... queue updates that take `gate` ...
//   StepGate outcome = decision->Wait();                       // later: the decision
//
// All functions but Wait() queue work and return. Errors of the GPU are thrown as Error.
#ifndef APOGEE_OPTIM_STEP_DEVICE_DECISION_H_
#define APOGEE_OPTIM_STEP_DEVICE_DECISION_H_

#include <memory>
#include <span>

#include "apogee/optim/core/kernels.h"
#include "apogee/optim/step/step_gate.h"

namespace apogee::optim {

// Each parameter has two marks: one of these constants, and the sum (NormKind::kMax: the maximum)
// behind its gradient's norm. Ranks add both up (kMax: take the maximum of both).
inline constexpr double kGradPresent = 1;
inline constexpr double kGradNonFinite = 1 << 20;  // more than kGradPresent of all ranks

// A gradient that is present on this rank.
struct MarkChunk {
  const void* grad;
  DType grad_dtype;
  int64_t n;
  int64_t index;    // of the parameter's marks
  double replicas;  // ranks that hold the same elements; sums are divided by it
};

class DeviceDecision {
 public:
  struct Settings {
    NormKind kind;
    bool check_finite;  // skip if a gradient is not finite
    double max_norm;    // 0: no clipping
    bool has_digest;    // after the marks; skip if ranks differ (options_agreement.h)
    double inv_loss_scale;
  };

  virtual ~DeviceDecision() = default;

  // The GPU it works on; never null.
  virtual const ContextPtr& context() const = 0;
  // Writes the marks of `chunks` and leaves the others alone.
  virtual void Mark(NormKind kind, std::span<const MarkChunk> chunks, double* marks) = 0;
  // Decides as Optimizer::DecideFrom does, with the same bits. The gate is valid, in stream order,
  // until the next call.
  virtual const StepGate* Decide(const Settings& settings, const double* marks, int64_t count) = 0;
  // Waits for the outcome of the last Decide().
  virtual StepGate Wait() = 0;
};

// Whether steps can be decided on the context's device: its backend makes decisions
// (optim/core/device_backend.h), and the host need not wait for what it queues.
bool HasDeviceDecision(const DeviceContext& context);
// Throws Error if the context's device has none.
std::unique_ptr<DeviceDecision> MakeDeviceDecision(const ContextPtr& context);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_STEP_DEVICE_DECISION_H_
