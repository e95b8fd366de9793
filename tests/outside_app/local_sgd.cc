// SPDX-License-Identifier: Apache-2.0

#include "local_sgd.h"

#include <utility>

#include "apogee/plugins/precision.h"
#include "apogee/plugins/replicas.h"

namespace outside {
namespace {

namespace comm = apogee::comm;
namespace optim = apogee::optim;
using apogee::Tensor;

void ToMean(comm::Group& group, const Tensor& tensor) {
  const Tensor sum = tensor.Clone();
  group.AllReduce(sum);
  apogee::DispatchFloat(sum.dtype(), "mean", [&]<typename T>() {
    using C = apogee::ComputeType<T>;
    for (int64_t i = 0; i < sum.numel(); ++i) {
      sum.data<T>()[i] = T(static_cast<C>(sum.data<T>()[i]) / static_cast<C>(group.size()));
    }
  });
  tensor.CopyFrom(sum);
}

}  // namespace

LocalSgdPlugin::LocalSgdPlugin(comm::GroupPtr group, const apogee::TrainingOptions& training,
                               const LocalSgdOptions& options)
    : group_(std::move(group)), training_(training), options_(options) {
  std::string errors;
  apogee::CheckTrainingOptions(training, errors);
  if (options.every < 1) errors += "\n  every must be at least 1";
  if (training.precision == apogee::Precision::kFp16)
    errors += "\n  precision fp16 needs a loss scale: use bf16";
  APOGEE_CHECK(errors.empty(), "local_sgd plugin: invalid options:", errors);
}

LocalSgdPlugin::~LocalSgdPlugin() {
  if (optimizer_ == nullptr || optimizer_.is_gone()) return;
  optimizer_->RefuseSteps("local_sgd plugin: it is gone; keep it as long as the loop");
}

optim::Optimizer& LocalSgdPlugin::Configure(apogee::nn::Module& model,
                                            optim::Optimizer& optimizer) {
  APOGEE_CHECK(!configured_, "local_sgd plugin: it has a model; make another plugin");
  apogee::CheckWhole("local_sgd", model);
  apogee::CheckPrecision(DTypeOf(training_.precision), optimizer);
  apogee::PrepareReplicas("local_sgd", model, optimizer, group_);
  apogee::ApplyPrecision(DTypeOf(training_.precision), model, optimizer);
  optim::StepOptions step = optimizer.step_options();
  if (training_.max_norm > 0) step.max_norm = training_.max_norm;
  optimizer.set_step_options(step);
  configured_ = true;
  optimizer_ = &optimizer;
  own_ = optimizer.AddListener(*this);
  return optimizer;
}

void LocalSgdPlugin::AfterStep() {
  if (++steps_ % options_.every == 0) Average();
}

void LocalSgdPlugin::Average() {
  if (group_ == nullptr) return;
  optimizer_->ForEachView([&](optim::ParamView& view, int /*group*/) {
    ToMean(*group_, view.master());
    if (view.needs_master()) view.value().CopyFrom(view.master());
    for (const optim::NamedState& state : view.states()) {
      if (apogee::IsFloat(state.value.dtype())) ToMean(*group_, state.value);
    }
  });
}

}  // namespace outside
