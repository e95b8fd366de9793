// SPDX-License-Identifier: Apache-2.0

// FusedStep: the step of a FusedBackwardOptimizer whose update happens inside backward, for who
// runs that backward. Gradients come in any order, one or several at a time, and are not kept.
//
//   FusedStep step(optimizer);
//   if (step.needs_norms()) {
//     ... a backward that keeps its graph; for each gradient: step.AddNorm(view, grad) ...
//     step.Decide();
//   }
//   if (!step.skip()) { ... a backward; for gradients as they become final: step.Update(params) ...
//   } step.Finish();                                  // what optimizer.step() will report
//
// Gradients are those of the loss times step_options().loss_scale. Without Finish (an exception)
// nothing is left of it, and no gradient; parameters that have been updated stay so.
//
// Where the optimizer has a StatReducer over several ranks, Decide and Update are collective, each
// Update with the same parameters in the same order.
#ifndef APOGEE_OPTIM_FUSED_STEP_H_
#define APOGEE_OPTIM_FUSED_STEP_H_

#include <map>
#include <span>

#include "apogee/optim/optimizer.h"

namespace apogee::optim {

class FusedStep {
 public:
  // Throws Error when the last one has not been finished by step(), or a gradient is left over.
  explicit FusedStep(Optimizer& optimizer);
  ~FusedStep();
  FusedStep(const FusedStep&) = delete;
  FusedStep& operator=(const FusedStep&) = delete;

  // Whether one decision for all parameters comes before the first update: there is a max_norm, or
  // a NonFinitePolicy other than kProceed.
  bool needs_norms() const;
  // `grad`: this rank's elements of it, one per element of the view's layout.
  void AddNorm(const ParamView& view, const Tensor& grad);
  void Decide();
  bool skip() const { return report().skip; }
  void Update(std::span<const ActiveParam> params);
  void Finish();

 private:
  StepReport& report() const { return *optimizer_.fused_report_; }

  Optimizer& optimizer_;
  std::map<const ParamView*, double> norms_;  // as the kernel gives them
  bool finished_ = false;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_FUSED_STEP_H_
