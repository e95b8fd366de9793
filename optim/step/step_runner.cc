// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/step/step_runner.h"

#include <utility>

#include "apogee/optim/core/layerwise.h"
#include "apogee/tensor/cuda/cuda_graph_call.h"

namespace apogee::optim {

void StepRunner::set_reducer(std::unique_ptr<StatReducer> reducer) {
  store_.set_spans_ranks(reducer != nullptr);
  reducer_ = reducer != nullptr ? std::move(reducer) : std::make_unique<StatReducer>();
}

uint64_t StepRunner::OptionsDigest() const {
  const OptionTable& options = rule_.options_table();
  OptionHash hash;
  for (int group = 0; group < options.num_groups(); ++group) hash.Add(options.Digest(group));
  hash.Add(options_.max_norm);
  hash.Add(static_cast<int64_t>(options_.norm_kind));
  hash.Add(static_cast<int64_t>(options_.nonfinite));
  hash.Add(options_.loss_scale);
  return hash.value();
}

void StepRunner::BeginStep() {
  for (const ParamView& view : store_.views()) {
    if (!view.trainable()) continue;
    const DeviceContext& context = *view.value().context();
    APOGEE_CHECK(context.recorder() == nullptr || CudaGraphCall::IsUnderWay(context), "optimizer ",
                 store_.optimizer(),
                 ": step() within the capture of a CudaGraph, whose replays would use this step's "
                 "learning rate and step counts; use GraphedMicroStep::Step or a CudaGraphCall");
    break;  // an optimizer has one device
  }
  Settle();
  if (std::exchange(options_differ_, false)) ThrowOptionsDiffer(reducer_->group());
}

void StepRunner::Step() {
  if (fused_report_.has_value()) {
    for (const ParamView& view : store_.views()) {
      APOGEE_CHECK(
          !view.has_grad(), "optimizer ", store_.optimizer(), ": parameter \"", view.name(),
          "\" got a gradient after the fused backward of this step, which has already updated it; ",
          "call step() right after the fused backward");
    }
    report_ = *std::exchange(fused_report_, std::nullopt);
    if (report_.gate != nullptr) {
      pending_ = std::exchange(fused_pending_, {});
    } else {
      TellDecided();
    }
    return End();
  }
  report_ = {};
  std::vector<ActiveParam> active;
  PendingStep undecided;
  static_cast<StepDecision&>(report_) = Decide(active, undecided);
  const StepDecision decision = report_;
  std::vector<StatBuffer> totals;
  const bool updates =
      !decision.skip && !active.empty() && Prepare(active, *reducer_, report_, totals);
  const bool is_pending = updates && decision.gate != nullptr;
  if (updates) report_.num_updated = static_cast<int64_t>(active.size());
  if (!is_pending) TellDecided();
  if (updates) {
    Apply(active, decision, totals);
    rule_.On(RuleEvent::kUpdated);
    for (const ActiveParam& param : active) param.view->DropTemporaries();
  }
  if (is_pending) pending_ = std::move(undecided);
  End();
}

void StepRunner::TellDecided() const {
  num_skipped_ += report_.skip ? 1 : 0;
  listeners_.Tell(&StepListener::Decided);
}

void StepRunner::End() {
  listeners_.Tell(&StepListener::AfterStep);
  APOGEE_CHECK(!report_.skip || options_.nonfinite != NonFinitePolicy::kThrow, "optimizer ",
               store_.optimizer(), ": the gradient of parameter \"", report_.nonfinite_parameter,
               "\" is not finite; the weights were left alone");
}

bool StepRunner::Prepare(std::span<const ActiveParam> active, StatReducer& reducer,
                         StepReport& report, std::vector<StatBuffer>& totals) {
  // All memory is allocated before the first step count advances.
  DType dtype = DType::kF32;
  for (const ActiveParam& param : active) {
    param.view->master();
    store_.Make(*param.view, param.group);
    if (param.view->compute_dtype() == DType::kF64) dtype = DType::kF64;
  }
  const int num_phases = rule_.traits().num_stat_phases;
  for (int phase = 0; phase < num_phases; ++phase) {
    StatBuffer buffer(dtype, active[0].grad.context());
    rule_.DeclareStats(phase, active, buffer);
    buffer.Allocate();
    std::string name = rule_.ComputeStats(phase, {active, report, totals}, buffer);
    if (!name.empty()) {
      report.skip = true;
      report.nonfinite_parameter = std::move(name);
      return false;
    }
    buffer.CountReplicasOnce();
    reducer.Reduce(buffer);
    totals.push_back(std::move(buffer));
  }
  return true;
}

void StepRunner::Apply(std::span<const ActiveParam> active, const StepDecision& decision,
                       std::span<const StatBuffer> totals) {
  for (const ActiveParam& param : active) param.view->set_step(param.view->step() + 1);
  ForEachGroup(active, [&](int group, size_t, std::span<const ActiveParam> params) {
    rule_.Update({params, decision, totals, group});
  });
}

}  // namespace apogee::optim
