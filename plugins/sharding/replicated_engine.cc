// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/sharding/replicated_engine.h"

#include <algorithm>
#include <set>
#include <utility>

#include "apogee/optim/core/group_stat_reducer.h"
#include "apogee/optim/core/options_agreement.h"
#include "apogee/optim/core/owners.h"
#include "apogee/plugins/precision.h"
#include "apogee/plugins/replicas.h"

namespace apogee {

ReplicatedEngine::ReplicatedEngine(comm::GroupPtr group, const TrainingOptions& training,
                                   const DdpOptions& options, const CutParameters& cut)
    : DataParallelEngine("ddp", std::move(group), training, cut, /*problems=*/""),
      options_(options) {}

void ReplicatedEngine::Check(nn::Module& model, optim::Optimizer& optimizer) const {
  DataParallelEngine::Check(model, optimizer);
  const optim::LocalGradients* local = optimizer.traits().local_gradients;
  if (local == nullptr || group_ == nullptr) return;
  const double max_norm =
      training_.max_norm > 0 ? training_.max_norm : optimizer.step_options().max_norm;
  std::string problem = local->ProblemOverRanks(max_norm);
  if (options_.reproducible) {
    problem = "its 1-bit messages depend on the number of ranks, which reproducible mode rules out";
  }
  if (cut_.is_expert) {
    problem =
        "its 1-bit messages go to all data-parallel ranks, which must hold the same "
        "parameters, and ep_size spreads experts over them; use ep_size 1 or another optimizer";
  }
  APOGEE_CHECK(problem.empty(), plugin_, ": optimizer ", optimizer.name(), ": ", problem);
}

optim::Optimizer& ReplicatedEngine::Configure(nn::Module& model, optim::Optimizer& optimizer) {
  Check(model, optimizer);
  for (optim::ParamView& view : optimizer.views()) {
    if (is_cut() && view.parameter()->is_here()) view.BindParameter(PartOf(*view.parameter()));
  }
  Prepare(model, optimizer);
  policy_ = PrecisionPolicy(training_, model);
  ApplyPrecision(policy_, model, optimizer);
  optimizer_ = &optimizer;
  Listen();
  // On several ranks the update waits until gradients are averaged: step() makes it.
  const bool alone = group_ == nullptr && !is_cut();
  fused_ = alone && optimizer.traits().fused_backward;
  if (fused_) return optimizer;
  std::vector<autograd::ParameterPtr> reduced = SplitOff(model, optimizer);
  local_ = optimizer.traits().local_gradients;
  if (local_ != nullptr) HandOverGradients(model, optimizer, reduced);
  // If there are several GradientChunks, only the first may overlap.
  chunk::GradientChunkOptions chunks =
      ChunkOptions(training_.overlap && local_gradients_ == nullptr);
  chunks.agreement = AgreeOnOptions();
  if (cut_.is_expert) {
    const auto first = std::ranges::stable_partition(
        reduced, [&](const auto& parameter) { return !cut_.is_expert(*parameter); });
    chunk::GradientChunkOptions experts = ChunkOptions(/*overlap=*/false);
    expert_gradients_ = std::make_unique<chunk::GradientChunks>(
        std::vector(first.begin(), first.end()), cut_.expert_copies, experts);
    reduced.erase(first.begin(), first.end());
  }
  gradients_ = std::make_unique<chunk::GradientChunks>(std::move(reduced), group_, chunks);
  return optimizer;
}

// A step sums nothing over this group, so ranks compare options in backward. The next backward
// finds options that changed between backward and step.
chunk::Agreement ReplicatedEngine::AgreeOnOptions() {
  if (group_ == nullptr) return {};
  return {.digest = [this] { return optimizer_->OptionsDigest() ^ (last_options_ << 1); },
          .on_difference = [this] { optimizer_->ThrowOptionsDiffer(group_.get()); }};
}

chunk::GradientChunkOptions ReplicatedEngine::ChunkOptions(bool overlap) const {
  return {.chunk_bytes = training_.bucket_bytes,
          .overlap = overlap,
          .reproducible = options_.reproducible,
          .key_of = cut_.bucket_key,
          .listeners = optimizer_->listeners()};
}

void ReplicatedEngine::HandOverGradients(nn::Module& model, optim::Optimizer& optimizer,
                                         std::vector<autograd::ParameterPtr>& reduced) {
  // One save has the states of all ranks, including ranks that hold other parts.
  const int copies = comm::GroupSize(group_);
  const int rank = group_ == nullptr ? 0 : group_->rank();
  const int parts = comm::GroupSize(cut_.statistics_group);
  const int part = is_cut() ? cut_.statistics_group->rank() : 0;
  optimizer.SetRanks({.group = group_,
                      .statistics = cut_.statistics_group,
                      .rank = rank * parts + part,
                      .num_ranks = copies * parts});
  before_forward_ = model.AddPreForwardHook(
      [local = local_, optimizer = Watched(&optimizer)](nn::Module& root, const Tensor&) {
        if (!root.is_training() && !optimizer.is_gone()) local->SyncReplicas();
      });
  std::vector<autograd::ParameterPtr> may_stay;
  optimizer.ForEachView([&](const optim::ParamView& view, int group) {
    if (!local_->MayTakeLocalGrad(group) || !view.parameter()->is_here()) return;
    local_group_ = group;
    may_stay.push_back(view.parameter());
    std::erase(reduced, view.parameter());
  });
  if (may_stay.empty()) return;
  may_stay_local_ = may_stay;
  chunk::GradientChunkOptions chunks = ChunkOptions(training_.overlap);
  chunks.agreement = AgreeOnOptions();
  local_gradients_ = std::make_unique<chunk::GradientChunks>(std::move(may_stay), group_, chunks);
}

std::vector<autograd::ParameterPtr> ReplicatedEngine::SplitOff(const nn::Module& model,
                                                               optim::Optimizer& optimizer) const {
  std::vector<autograd::ParameterPtr> reduced = HeldParameters(model);
  const int num_ranks = comm::GroupSize(group_);
  if (is_cut()) {
    optim::SumStatistics(optimizer, cut_.statistics_group);
    return reduced;
  }
  const bool needs_whole = options_.reproducible || optimizer.step_options().max_norm > 0;
  if (num_ranks == 1 || needs_whole) return reduced;
  const optim::OptimizerTraits traits = optimizer.traits();
  // HandOverGradients handles gradients that are local only in some steps.
  if (traits.local_gradients != nullptr) return reduced;
  std::set<const autograd::Parameter*> addends;
  optimizer.ForEachView([&](optim::ParamView& view, int group) {
    if (!traits.Of(view, group).reduces_own_grad) return;
    view.set_partial_grad(num_ranks);
    view.parameter()->set_grad_place(addends_);
    addends.insert(view.parameter().get());
  });
  if (addends.empty()) return reduced;
  optim::AssignOwners(optimizer, group_->rank(), num_ranks);
  optimizer.set_stat_reducer(std::make_unique<optim::AddendStatReducer>(group_));
  std::erase_if(reduced, [&](const auto& parameter) { return addends.contains(parameter.get()); });
  return reduced;
}

void ReplicatedEngine::CheckSameAnswer() const {
  if (group_ == nullptr || !stays_local_) return;
  APOGEE_CHECK(local_->TakesLocalGrad(local_group_) == *stays_local_,
               "ddp: an optimizer state of another phase was loaded since the last backward, whose "
               "gradients are ",
               *stays_local_ ? "each rank's own" : "means over the ranks",
               " and do not fit that phase; call zero_grad() and backward again");
}

void ReplicatedEngine::AskWhichStay() {
  if (stays_local_ && *stays_local_ != local_->TakesLocalGrad(local_group_)) {
    // Ranks may have gradients for different parameters, but must all make the same calls.
    const bool any = std::ranges::any_of(may_stay_local_, &autograd::Parameter::has_grad);
    const Tensor left =
        Tensor::Full({1}, DType::kF32, any ? 1 : 0, may_stay_local_[0]->data().context());
    for (const comm::GroupPtr& group : {group_, cut_.statistics_group}) {
      if (group != nullptr) group->AllReduce(left, comm::ReduceOp::kMax);
    }
    if (left.Item() == 0) stays_local_.reset();
  }
  CheckSameAnswer();
  const bool local = local_->TakesLocalGrad(local_group_);
  local_gradients_->set_reduces(!local);
  if (stays_local_ || group_ == nullptr) return;
  stays_local_ = local;
  if (!local) {
    local_place_ = nullptr;
    return;
  }
  if (local_place_ != nullptr) return;
  // Clipping by hand would use a different norm on every rank.
  local_place_ = std::make_shared<autograd::GradPlace>(autograd::GradPlace{
      .where = "in this step its gradient is this rank's own, and the optimizer averages a smaller "
               "message made from it; set the ddp plugin's max_norm"});
  for (const autograd::ParameterPtr& parameter : may_stay_local_) {
    if (parameter->grad_place() == nullptr) parameter->set_grad_place(local_place_);
  }
}

void ReplicatedEngine::BeforeStep() {
  DataParallelEngine::BeforeStep();
  CheckSameAnswer();
}

void ReplicatedEngine::AfterStep() {
  DataParallelEngine::AfterStep();
  if (group_ != nullptr) last_options_ = optimizer_->OptionsDigest();
  stays_local_.reset();
}

bool ReplicatedEngine::BeginBackward() {
  const bool reduce = DataParallelEngine::BeginBackward();
  if (local_gradients_ != nullptr) AskWhichStay();
  return reduce;
}

void ReplicatedEngine::RunPass(const std::function<void()>& backward,
                               const chunk::GradientPass& pass) {
  std::vector<chunk::GradientChunks*> all;
  if (local_gradients_ != nullptr) all.push_back(local_gradients_.get());
  all.push_back(gradients_.get());
  if (expert_gradients_ != nullptr) all.push_back(expert_gradients_.get());
  chunk::GradientChunks::Run(all, backward, pass);
}

void ReplicatedEngine::Backward(const Tensor& loss) {
  if (!fused_) return DataParallelEngine::Backward(loss);
  BeginBackward();
  optimizer_->fused_backward(loss);
}

}  // namespace apogee
