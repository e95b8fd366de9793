// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/sharding/step_guard.h"

#include <utility>

#include "apogee/optim/step/fused_backward.h"

namespace apogee {

StepGuard::StepGuard(std::string plugin, const TrainingOptions& training)
    : plugin_(std::move(plugin)), max_norm_(training.max_norm) {
  if (training.precision == Precision::kFp16) {
    scaler_ = std::make_unique<optim::LossScaler>(training.loss_scaler);
  }
}

void StepGuard::Attach(optim::Optimizer& optimizer) {
  optimizer_ = &optimizer;
  if (dynamic_cast<optim::FusedBackwardOptimizer*>(&optimizer) != nullptr) {
    single_backward_ = optimizer.name();
  }
  optim::StepOptions step_options = optimizer.step_options();
  if (max_norm_ > 0) step_options.max_norm = max_norm_;
  optimizer.set_step_options(step_options);
  // A fused backward multiplies the loss itself, where plugins use loss_scale().
  if (single_backward_.empty()) own_scale_ = step_options.loss_scale;
  SetLossScale(optimizer);
  hooks_.emplace_back(optimizer.AddPreStepHook([this](auto& stepped) { BeforeStep(stepped); }));
  hooks_.emplace_back(optimizer.AddStepHook([this](auto& stepped) { AfterStep(stepped); }));
  hooks_.emplace_back(optimizer.AddReportHook([this](auto& stepped) { AfterReport(stepped); }));
}

StepGuard::~StepGuard() {
  if (optimizer_ == nullptr || optimizer_.is_gone()) return;
  optimizer_->RefuseSteps(plugin_ + ": step() of optimizer " + optimizer_->name() +
                          " after its plugin was destroyed; the plugin must outlive the training "
                          "loop");
}

bool StepGuard::OnBackward() {
  APOGEE_CHECK(!optimizer_.is_gone(), plugin_,
               ": backward after the optimizer that boost returned was destroyed; keep it for as "
               "long as the model trains");
  const bool reduce = *no_sync_depth_ == 0;
  APOGEE_CHECK(single_backward_.empty() || (num_backwards_ == 0 && reduce), plugin_, ": optimizer ",
               single_backward_,
               " uses each gradient up as soon as it is final, so gradients of several backward "
               "calls cannot be accumulated: use one larger batch, and call step() after each "
               "backward");
  ++num_backwards_;
  unreduced_ = !reduce;
  return reduce;
}

std::shared_ptr<void> StepGuard::NoSync() {
  ++*no_sync_depth_;
  return std::shared_ptr<void>(nullptr, [depth = no_sync_depth_](void*) { --*depth; });
}

void StepGuard::SetLossScale(optim::Optimizer& optimizer) const {
  optim::StepOptions options = optimizer.step_options();
  options.loss_scale = own_scale_ * loss_scale();
  optimizer.set_step_options(options);
}

void StepGuard::BeforeStep(optim::Optimizer& optimizer) {
  APOGEE_CHECK(num_backwards_ > 0, plugin_,
               ": step() without a backward since the last step; call booster.backward(loss, "
               "optimizer) first");
  APOGEE_CHECK(!unreduced_, plugin_,
               ": step() after a backward under no_sync, whose gradients have not been averaged "
               "over the ranks; let the last micro-batch's backward run outside of no_sync");
  // Options set since boost do not have the scale that backward used.
  if (scaler_ != nullptr || !single_backward_.empty()) SetLossScale(optimizer);
}

void StepGuard::AfterStep(optim::Optimizer& optimizer) {
  num_backwards_ = 0;
  if (scaler_ != nullptr) unreported_ = &optimizer;
}

void StepGuard::AfterReport(optim::Optimizer& optimizer) {
  if (scaler_ == nullptr) return;
  unreported_ = nullptr;
  scaler_->Update(optimizer.last_step().skip);
  SetLossScale(optimizer);
}

}  // namespace apogee
