// SPDX-License-Identifier: Apache-2.0

// FusedStep: the step of an optimizer with the trait fused_backward, for code that runs the
// backward itself. Gradients come in any order, one or several at a time, and are not kept. Where a
// GPU makes the decision (OptimizerTraits::decides_on_device), no function waits for it.
//
//   FusedStep step(optimizer);
//   if (step.needs_norms()) {
//     ... a backward that keeps its graph; for each gradient: step.AddNorm(view, grad) ...
//     step.Decide();
//   }
//   if (!step.skip()) {
//     ... a backward; for gradients as they become final: step.Update(params) ...
//   }
//   step.Finish();                          // sets the report that optimizer.step() publishes
//
// Gradients are those of the loss times step_options().loss_scale. If Finish is not reached (an
// exception), the destructor drops the report and all gradients; parameters already updated stay
// updated. It waits for a GPU that has decided.
//
// If the optimizer has a StatReducer over several ranks, Decide and Update are collective: all
// ranks call them in the same order, each Update with the same parameters. An Update with a reducer
// of its own concerns the ranks of that reducer only.
#ifndef APOGEE_OPTIM_STEP_FUSED_STEP_H_
#define APOGEE_OPTIM_STEP_FUSED_STEP_H_

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "apogee/optim/optimizer.h"

namespace apogee::optim {

class GradMarks;
class StepRunner;

class FusedStep {
 public:
  // Throws Error if step() has not been called since the last one, or a parameter has a gradient.
  explicit FusedStep(Optimizer& optimizer);
  ~FusedStep();
  FusedStep(const FusedStep&) = delete;
  FusedStep& operator=(const FusedStep&) = delete;

  // Whether all norms are needed before the first update: with a max_norm, or a NonFinitePolicy
  // other than kProceed.
  bool needs_norms() const;
  // `grad`: this rank's part of the gradient, one element per element of the view's layout.
  void AddNorm(const ParamView& view, const Tensor& grad);
  void Decide();
  // Whether there is nothing to update. False while only the GPU knows: Update() then changes
  // nothing if the step is skipped.
  bool skip() const { return report().skip; }
  // `reducer`: over all ranks that hold parts of these parameters. Null: the optimizer's.
  void Update(std::span<const ActiveParam> params, StatReducer* reducer = nullptr);
  void Finish();

 private:
  StepReport& report() const;
  void MarkOnHost(const ParamView& view, const Tensor& grad);
  // Takes back what the GPU has not done.
  void Revoke();

  Optimizer& optimizer_;
  StepRunner& runner_;
  std::vector<ParamView*> views_;  // trainable, in the order of the marks
  std::map<const ParamView*, size_t> index_of_;
  std::unique_ptr<GradMarks> marks_;  // null: no norms, or nothing to update
  bool on_device_ = false;            // the marks and the decision stay on the GPU
  std::vector<ParamView*> updated_;
  bool finished_ = false;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_STEP_FUSED_STEP_H_
