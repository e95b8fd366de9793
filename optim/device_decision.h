// SPDX-License-Identifier: Apache-2.0

// DeviceDecision: the decision phase of a step on a GPU, without the host waiting for it. One per
// optimizer; private to optim.
//
//   auto decision = MakeDeviceDecision(context);
//   decision->Mark(NormKind::kL2, chunks, marks);              // norms and finite flags
//   reducer.Reduce(...);                                       // over the ranks
//   const StepGate* gate = decision->Decide(settings, marks, num_parameters);
//   ... updates that take `gate` are queued ...
//   StepGate outcome = decision->Wait();                       // later: what was decided
//
// All but Wait() queue work and return. Errors of the GPU are thrown as Error.
#ifndef APOGEE_OPTIM_DEVICE_DECISION_H_
#define APOGEE_OPTIM_DEVICE_DECISION_H_

#include <memory>
#include <span>

#include "apogee/optim/kernels.h"
#include "apogee/optim/step_gate.h"

namespace apogee::optim {

// Marks of gradients, two numbers for each parameter: one of these, added up over the ranks or
// their maximum, and the sum (NormKind::kMax: maximum) that its norm is made of.
inline constexpr double kGradPresent = 1;
inline constexpr double kGradNonFinite = 1 << 20;  // more than any number of ranks that have it

// A gradient that this rank has.
struct MarkChunk {
  const void* grad;
  DType grad_dtype;
  int64_t n;
  int64_t index;    // of the parameter among the marks
  double replicas;  // ranks that hold the same elements; a sum counts once
};

class DeviceDecision {
 public:
  struct Settings {
    NormKind kind;
    bool check_finite;  // skip where a gradient is not
    double max_norm;    // 0: no clipping
    bool has_digest;    // behind the marks; skip where ranks' differ (options_agreement.h)
    double inv_loss_scale;
  };

  virtual ~DeviceDecision() = default;

  // Where it works; never null.
  virtual const ContextPtr& context() const = 0;
  // Writes the chunks' marks; the others stay.
  virtual void Mark(NormKind kind, std::span<const MarkChunk> chunks, double* marks) = 0;
  // The arithmetic of Optimizer::DecideFrom, to the bit. The gate is valid, in stream order, until
  // the next call.
  virtual const StepGate* Decide(const Settings& settings, const double* marks, int64_t count) = 0;
  // The outcome of the last Decide().
  virtual StepGate Wait() = 0;
};

// Throws Error where this build has no CUDA.
std::unique_ptr<DeviceDecision> MakeDeviceDecision(const ContextPtr& context);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_DEVICE_DECISION_H_
