// SPDX-License-Identifier: Apache-2.0

// StepGuard: the settings of every step that multi-rank plugins share (clipping, loss scale). Also
// checks that a loop calls backward and step in a valid order.
//
//   StepGuard guard("ddp", {.precision = Precision::kFp16, .max_norm = 1.0});
//   guard.Attach(optimizer);
//   const bool reduce = guard.OnBackward();     // before each backward
//   autograd::Backward(loss, {.grad = guard.LossGradient(loss)});
//
// All checks depend only on the order of calls, so either every rank throws or none does.
#ifndef APOGEE_PLUGINS_STEP_GUARD_H_
#define APOGEE_PLUGINS_STEP_GUARD_H_

#include <memory>
#include <string>
#include <vector>

#include "apogee/optim/optimizer.h"
#include "apogee/optim/step/loss_scaler.h"
#include "apogee/plugins/training_options.h"

namespace apogee {

class StepGuard {
 public:
  // Only fp16 has a dynamic loss scale. Throws Error that lists every wrong option of the scaler.
  StepGuard(std::string plugin, const TrainingOptions& training);
  // An optimizer that is still alive refuses to step from then on.
  ~StepGuard();
  StepGuard(const StepGuard&) = delete;
  StepGuard& operator=(const StepGuard&) = delete;

  // Hooks into the optimizer's step, which throws Error once the guard is gone. A loss scale that
  // the optimizer already has stays: the loop multiplies its loss by it.
  void Attach(optim::Optimizer& optimizer);
  // Call it before each backward. Returns whether this backward reduces gradients: false while a
  // handle of NoSync lives. Throws Error on a second backward before step() if the optimizer
  // updates inside backward, and once the optimizer is gone.
  bool OnBackward();
  // The backward has failed and its gradients are gone: does not count it.
  void ForgetBackward() { num_backwards_ = 0; }
  // Plugin::NoSync; the handle may outlive the guard.
  std::shared_ptr<void> NoSync();
  // Null except for fp16.
  optim::LossScaler* loss_scaler() {
    Settle();
    return scaler_.get();
  }
  double loss_scale() const {
    Settle();
    return scaler_ != nullptr ? scaler_->scale() : 1;
  }
  // The gradient of the loss that backward starts from: that scale.
  Tensor LossGradient(const Tensor& loss) const {
    return Tensor::Full(loss.shape(), loss.dtype(), loss_scale(), loss.context());
  }

 private:
  void BeforeStep(optim::Optimizer& optimizer);
  void SetLossScale(optim::Optimizer& optimizer) const;
  void AfterStep(optim::Optimizer& optimizer);
  void AfterReport(optim::Optimizer& optimizer);
  // Tells the scaler about the last step, which may have been decided on a GPU.
  void Settle() const {
    if (unreported_ != nullptr && !optimizer_.is_gone()) unreported_->last_step();
  }

  std::string plugin_;
  double max_norm_;
  Watched<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::LossScaler> scaler_;
  const optim::Optimizer* unreported_ = nullptr;  // has stepped; not yet reported to the scaler
  double own_scale_ = 1;                          // the loop's own scale
  std::string single_backward_;                   // name of an optimizer that cannot accumulate
  int64_t num_backwards_ = 0;                     // since the last step
  bool unreduced_ = false;                        // the last backward kept gradients local
  std::shared_ptr<int> no_sync_depth_ = std::make_shared<int>(0);  // live handles
  std::vector<Subscription> hooks_;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_STEP_GUARD_H_
