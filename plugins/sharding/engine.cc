// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/sharding/engine.h"

#include <utility>

#include "apogee/autograd/engine.h"
#include "apogee/optim/core/group_stat_reducer.h"
#include "apogee/plugins/precision.h"
#include "apogee/plugins/replicas.h"

namespace apogee {
namespace {

// Before the members that need valid options are made.
const TrainingOptions& Checked(const std::string& plugin, const TrainingOptions& training,
                               std::string problems) {
  CheckTrainingOptions(training, problems);
  APOGEE_CHECK(problems.empty(), plugin, " plugin: invalid options:", problems);
  return training;
}

}  // namespace

DataParallelEngine::DataParallelEngine(std::string plugin, comm::GroupPtr group,
                                       const TrainingOptions& training, const CutParameters& cut,
                                       std::string problems)
    : plugin_(std::move(plugin)),
      group_(std::move(group)),
      training_(Checked(plugin_, training, std::move(problems))),
      cut_(cut),
      dtype_(DTypeOf(training.precision)) {
  if (training.precision == Precision::kFp16) {
    scaler_ = std::make_unique<optim::LossScaler>(training.loss_scaler);
  }
}

DataParallelEngine::~DataParallelEngine() {
  if (!configured_ || optimizer_.is_gone()) return;
  optimizer_->RefuseSteps(plugin_ + ": step() of optimizer " + optimizer_->name() +
                          " after its plugin was destroyed; the plugin must outlive the training "
                          "loop");
}

void DataParallelEngine::Check(nn::Module& model, optim::Optimizer& optimizer) const {
  APOGEE_CHECK(!configured_, plugin_,
               ": the plugin runs another model already; make one plugin per model");
  if (!is_cut()) CheckWhole(plugin_, model);
  for (const optim::ParamView& view : optimizer.views()) {
    APOGEE_CHECK(!view.sharded() || !view.parameter()->is_here(), plugin_, ": parameter \"",
                 view.name(), "\" of optimizer ", optimizer.name(),
                 " is a shard already: another plugin has it; an optimizer can be boosted once");
  }
  CheckPrecision(dtype_, optimizer);
}

void DataParallelEngine::Listen() {
  if (optimizer_->traits().fused_backward) {
    single_backward_ = optimizer_->name();
  }
  optim::StepOptions step_options = optimizer_->step_options();
  if (training_.max_norm > 0) step_options.max_norm = training_.max_norm;
  optimizer_->set_step_options(step_options);
  // A fused backward multiplies the loss itself, where plugins use loss_scale().
  if (single_backward_.empty()) own_scale_ = step_options.loss_scale;
  SetLossScale();
  own_ = optimizer_->AddListener(*this);
  configured_ = true;
}

void DataParallelEngine::Backward(const Tensor& loss) {
  const bool reduce = BeginBackward();
  RunPass([&] { autograd::Backward(loss, {.grad = LossGradient(loss)}); }, {.reduce = reduce});
}

bool DataParallelEngine::BeginBackward() {
  APOGEE_CHECK(configured_, plugin_, ": backward before boost; call booster.boost first");
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
  optimizer_->listeners()->Tell(&StepListener::BeforeBackward);
  return reduce;
}

std::shared_ptr<void> DataParallelEngine::NoSync() {
  ++*no_sync_depth_;
  return std::shared_ptr<void>(nullptr, [depth = no_sync_depth_](void*) { --*depth; });
}

void DataParallelEngine::SetLossScale() const {
  optim::StepOptions options = optimizer_->step_options();
  options.loss_scale = own_scale_ * loss_scale();
  optimizer_->set_step_options(options);
}

void DataParallelEngine::BeforeStep() {
  APOGEE_CHECK(num_backwards_ > 0, plugin_,
               ": step() without a backward since the last step; call booster.backward(loss, "
               "optimizer) first");
  APOGEE_CHECK(!unreduced_, plugin_,
               ": step() after a backward under no_sync, whose gradients have not been averaged "
               "over the ranks; let the last micro-batch's backward run outside of no_sync");
  // Options set since boost do not have the scale that backward used.
  if (scaler_ != nullptr || !single_backward_.empty()) SetLossScale();
}

void DataParallelEngine::Decided() {
  if (scaler_ == nullptr) return;
  scaler_->Update(optimizer_->last_step().skip);
  SetLossScale();
}

void DataParallelEngine::SumStatistics(optim::Optimizer& optimizer,
                                       const comm::GroupPtr& without_cut) const {
  optim::SumStatistics(optimizer, is_cut() ? cut_.statistics_group : without_cut);
}

}  // namespace apogee
