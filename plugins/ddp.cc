#include "apogee/plugins/ddp.h"

#include <set>

#include "apogee/optim/fused_backward.h"
#include "apogee/optim/group_stat_reducer.h"
#include "apogee/optim/owners.h"
#include "apogee/plugins/precision.h"
#include "apogee/plugins/replicas.h"

namespace apogee {

DdpPlugin::DdpPlugin(comm::GroupPtr group, const DdpOptions& options)
    : group_(std::move(group)), options_(options) {
  std::string errors;
  dtype_ = ParsePrecision(options.precision, errors);
  CheckMaxNorm(options.max_norm, errors);
  CheckBucketBytes(options.bucket_bytes, errors);
  APOGEE_CHECK(errors.empty(), "ddp plugin: invalid options:", errors);
  guard_ = std::make_unique<StepGuard>("ddp", StepGuardOptions{.max_norm = options.max_norm,
                                                               .scale = dtype_ == DType::kF16,
                                                               .loss_scaler = options.loss_scaler});
}

DdpPlugin::~DdpPlugin() = default;

void DdpPlugin::Check(const nn::Module& model, optim::Optimizer& optimizer) const {
  APOGEE_CHECK(gradients_ == nullptr && fused_ == nullptr,
               "ddp: the plugin runs another model already; make one plugin per model");
  if (options_.statistics_group == nullptr) CheckWhole("ddp", model);
  CheckPrecision(dtype_, optimizer);
}

optim::Optimizer& DdpPlugin::Configure(nn::Module& model, optim::Optimizer& optimizer) {
  Check(model, optimizer);
  PrepareReplicas("ddp", model, optimizer, group_);
  ApplyPrecision(dtype_, model, optimizer);
  guard_->Attach(optimizer);
  // On several ranks gradients are averaged before the update, which step() makes then.
  const bool alone = group_ == nullptr && options_.statistics_group == nullptr;
  fused_ = alone ? dynamic_cast<optim::FusedBackwardOptimizer*>(&optimizer) : nullptr;
  if (fused_ != nullptr) return optimizer;
  gradients_ = std::make_unique<chunk::GradientChunks>(
      SplitOff(model, optimizer), group_,
      chunk::GradientChunkOptions{.chunk_bytes = options_.bucket_bytes,
                                  .overlap = options_.overlap,
                                  .reproducible = options_.reproducible});
  return optimizer;
}

std::vector<autograd::ParameterPtr> DdpPlugin::SplitOff(const nn::Module& model,
                                                        optim::Optimizer& optimizer) const {
  std::vector<autograd::ParameterPtr> reduced = model.Parameters();
  const int num_ranks = comm::GroupSize(group_);
  if (options_.statistics_group != nullptr) {
    optim::SumStatistics(optimizer, options_.statistics_group);
    return reduced;
  }
  const bool needs_whole = options_.reproducible || optimizer.step_options().max_norm > 0;
  if (num_ranks == 1 || needs_whole) return reduced;
  std::set<const autograd::Parameter*> addends;
  optimizer.ForEachView([&](optim::ParamView& view, int group) {
    if (!optimizer.ReducesOwnGrad(view, group)) return;
    view.set_partial_grad(num_ranks);
    view.parameter()->set_grad_keeper(
        "its gradient is this rank's part of a mean that the optimizer's step makes; set the ddp "
        "plugin's max_norm");
    addends.insert(view.parameter().get());
  });
  if (addends.empty()) return reduced;
  optim::AssignOwners(optimizer, group_->rank(), num_ranks);
  optimizer.set_stat_reducer(std::make_unique<optim::AddendStatReducer>(group_));
  std::erase_if(reduced, [&](const auto& parameter) { return addends.contains(parameter.get()); });
  return reduced;
}

void DdpPlugin::Backward(const Tensor& loss, optim::Optimizer&) {
  const bool reduce = guard_->OnBackward();
  if (fused_ != nullptr) return fused_->fused_backward(loss);
  gradients_->Backward(loss, loss_scale(), reduce);
}

}  // namespace apogee
