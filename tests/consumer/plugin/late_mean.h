// SPDX-License-Identifier: Apache-2.0

// LateMeanPlugin: plain data parallelism. After each backward, one all-reduce per gradient.
//
//   LateMeanPlugin plugin(world.group(), {.precision = Precision::kBf16, .max_norm = 1.0});
//   Booster booster(plugin);
#ifndef LATE_MEAN_H_
#define LATE_MEAN_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apogee/apogee.h"

class LateMeanPlugin : public apogee::Plugin {
 public:
  // `group`: the ranks to average over; null for one rank. Throws Error for fp16.
  LateMeanPlugin(apogee::comm::GroupPtr group, const apogee::TrainingOptions& training)
      : group_(std::move(group)), training_(training) {
    APOGEE_CHECK(training.precision != apogee::Precision::kFp16,
                 "late_mean plugin: precision fp16 needs a loss scale; use bf16");
  }

  std::string name() const override { return "late_mean"; }
  apogee::comm::GroupPtr group() const override { return group_; }
  apogee::comm::GroupPtr data_group() const override { return group_; }

  // Collective. Compares the ranks' models and options, and takes rank 0's values.
  apogee::optim::Optimizer& Configure(apogee::nn::Module& model,
                                      apogee::optim::Optimizer& optimizer) override {
    const apogee::PrecisionPolicy policy(training_, model);
    apogee::CheckWhole(name(), model);
    apogee::CheckTakesMeans(name(), optimizer);
    apogee::CheckPrecision(policy, optimizer);
    apogee::PrepareReplicas(name(), model, optimizer, group_);
    apogee::ApplyPrecision(policy, model, optimizer);
    apogee::optim::StepOptions step = optimizer.step_options();
    if (training_.max_norm > 0) step.max_norm = training_.max_norm;
    optimizer.set_step_options(step);
    for (const apogee::autograd::ParameterPtr& parameter : model.Parameters()) {
      if (parameter->requires_grad()) parameters_.push_back(parameter);
    }
    return optimizer;
  }

  // Collective, except under NoSync.
  void Backward(const apogee::Tensor& loss, apogee::optim::Optimizer&) override {
    apogee::autograd::Backward(loss);
    if (group_ == nullptr || !no_sync_.expired()) return;
    const std::vector<bool> present = PresentOnAnyRank(loss.context());
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (present[i]) Average(*parameters_[i]);  // the others stay absent, which is not zero
    }
  }

  // The gradients that ranks keep to themselves are averaged by the next backward.
  std::shared_ptr<void> NoSync() override {
    auto handle = std::make_shared<int>();
    no_sync_ = handle;
    return handle;
  }

 private:
  std::vector<bool> PresentOnAnyRank(const apogee::ContextPtr& context) const {
    std::vector<float> flags;
    for (const auto& parameter : parameters_) flags.push_back(parameter->has_grad() ? 1 : 0);
    const auto sums =
        apogee::Tensor::FromVector<float>(flags, {static_cast<int64_t>(flags.size())}, context);
    group_->AllReduce(sums);
    std::vector<bool> present;
    for (const float sum : sums.ToVector<float>()) present.push_back(sum > 0);
    return present;
  }

  void Average(apogee::autograd::Parameter& parameter) const {
    const apogee::Tensor sum =
        parameter.has_grad()
            ? parameter.grad().Clone()
            : apogee::Tensor::Zeros(parameter.shape(), parameter.grad_dtype(), parameter.context());
    group_->AllReduce(sum);
    parameter.set_grad(apogee::ops::Scale(sum, 1.0 / group_->size()));
  }

  apogee::comm::GroupPtr group_;
  apogee::TrainingOptions training_;
  std::vector<apogee::autograd::ParameterPtr> parameters_;
  std::weak_ptr<void> no_sync_;
};

#endif  // LATE_MEAN_H_
