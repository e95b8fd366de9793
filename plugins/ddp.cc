// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/ddp.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "apogee/chunk/gradient_chunks.h"
#include "apogee/optim/core/group_stat_reducer.h"
#include "apogee/optim/core/local_gradients.h"
#include "apogee/optim/core/options_agreement.h"
#include "apogee/optim/core/owners.h"
#include "apogee/optim/step/fused_backward.h"
#include "apogee/plugins/backward_passes.h"
#include "apogee/plugins/hybrid/cut_parameters.h"
#include "apogee/plugins/precision.h"
#include "apogee/plugins/replicas.h"
#include "apogee/plugins/step_guard.h"

namespace apogee {

std::vector<optim::OptionField<DdpOptions>> DdpOptions::Fields() {
  return {{"reproducible", &DdpOptions::reproducible}};
}

struct DdpPlugin::State : public BackwardPasses {
  State(comm::GroupPtr group, const TrainingOptions& training, const DdpOptions& options,
        const CutParameters& cut);

  void Check(const nn::Module& model, optim::Optimizer& optimizer) const;
  optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer);
  void Backward(const Tensor& loss);
  bool BeginBackward() override;
  void RunPass(const std::function<void()>& backward, const chunk::GradientPass& pass) override;

  // For an optimizer that asks for local gradients in some steps: passes it its ranks, makes
  // replicas equal before evaluations, and moves those parameters from `reduced` into chunks of
  // their own.
  void HandOverGradients(nn::Module& model, optim::Optimizer& optimizer,
                         std::vector<autograd::ParameterPtr>& reduced);
  // Before each backward: asks whether those gradients stay local.
  void AskWhichStay();
  // Throws Error, on every rank, when the optimizer's answer has changed since backward.
  void CheckSameAnswer() const;
  chunk::GradientChunkOptions ChunkOptions(bool overlap) const;
  // Makes ranks compare the options of the next step and of the last one.
  chunk::Agreement AgreeOnOptions(optim::Optimizer& optimizer);
  // Returns the parameters whose gradients are averaged inside backward; marks the views of the
  // others.
  std::vector<autograd::ParameterPtr> SplitOff(const nn::Module& model,
                                               optim::Optimizer& optimizer) const;

  comm::GroupPtr group_;
  TrainingOptions training_;
  DdpOptions options_;
  CutParameters cut_;
  std::unique_ptr<StepGuard> guard_;
  std::unique_ptr<chunk::GradientChunks> gradients_;
  // Null for most optimizers; else the chunks of gradients that may stay local.
  optim::LocalGradientOptimizer* local_ = nullptr;
  std::unique_ptr<chunk::GradientChunks> local_gradients_;
  std::vector<autograd::ParameterPtr> may_stay_local_;  // parameters of local_gradients_
  int local_group_ = 0;                                 // one of their parameter groups
  std::optional<bool> stays_local_;                     // the answer, from backward to step
  std::vector<Subscription> hooks_;
  // Of the gradients that the optimizer's step reduces, and of those that stay local in a step.
  const std::shared_ptr<const autograd::GradPlace> addends_ =
      std::make_shared<autograd::GradPlace>(autograd::GradPlace{
          .where = "its gradient is this rank's part of a mean that the optimizer's step makes; "
                   "set the ddp plugin's max_norm"});
  std::shared_ptr<const autograd::GradPlace> local_place_;
  optim::FusedBackwardOptimizer* fused_ = nullptr;
  uint64_t last_options_ = 0;  // digest of the last step's options
};

DdpPlugin::State::State(comm::GroupPtr group, const TrainingOptions& training,
                        const DdpOptions& options, const CutParameters& cut)
    : group_(std::move(group)), training_(training), options_(options), cut_(cut) {
  std::string errors;
  CheckTrainingOptions(training, errors);
  APOGEE_CHECK(errors.empty(), "ddp plugin: invalid options:", errors);
  guard_ = std::make_unique<StepGuard>("ddp", training);
}

void DdpPlugin::State::Check(const nn::Module& model, optim::Optimizer& optimizer) const {
  APOGEE_CHECK(gradients_ == nullptr && fused_ == nullptr,
               "ddp: the plugin runs another model already; make one plugin per model");
  if (cut_.statistics_group == nullptr) CheckWhole("ddp", model);
  CheckPrecision(DTypeOf(training_.precision), optimizer);
  const auto* local = dynamic_cast<const optim::LocalGradientOptimizer*>(&optimizer);
  if (local == nullptr || group_ == nullptr) return;
  const double max_norm =
      training_.max_norm > 0 ? training_.max_norm : optimizer.step_options().max_norm;
  std::string problem = local->ProblemOverRanks(max_norm);
  if (options_.reproducible) {
    problem = "its 1-bit messages depend on the number of ranks, which reproducible mode rules out";
  }
  APOGEE_CHECK(problem.empty(), "ddp: optimizer ", optimizer.name(), ": ", problem);
}

optim::Optimizer& DdpPlugin::State::Configure(nn::Module& model, optim::Optimizer& optimizer) {
  Check(model, optimizer);
  PrepareReplicas("ddp", model, optimizer, group_);
  ApplyPrecision(DTypeOf(training_.precision), model, optimizer);
  guard_->Attach(optimizer);
  // On several ranks the update waits until gradients are averaged: step() makes it.
  const bool alone = group_ == nullptr && cut_.statistics_group == nullptr;
  fused_ = alone ? dynamic_cast<optim::FusedBackwardOptimizer*>(&optimizer) : nullptr;
  if (fused_ != nullptr) return optimizer;
  if (group_ != nullptr) {
    hooks_.emplace_back(optimizer.AddStepHook(
        [this](optim::Optimizer& stepped) { last_options_ = stepped.OptionsDigest(); }));
  }
  std::vector<autograd::ParameterPtr> reduced = SplitOff(model, optimizer);
  local_ = dynamic_cast<optim::LocalGradientOptimizer*>(&optimizer);
  if (local_ != nullptr) HandOverGradients(model, optimizer, reduced);
  // If there are several GradientChunks, only the first may overlap.
  chunk::GradientChunkOptions chunks =
      ChunkOptions(training_.overlap && local_gradients_ == nullptr);
  chunks.agreement = AgreeOnOptions(optimizer);
  gradients_ = std::make_unique<chunk::GradientChunks>(std::move(reduced), group_, chunks);
  return optimizer;
}

// A step sums nothing over this group, so ranks compare options in backward. The next backward
// finds options that changed between backward and step.
chunk::Agreement DdpPlugin::State::AgreeOnOptions(optim::Optimizer& optimizer) {
  if (group_ == nullptr) return {};
  return {
      .digest = [this, &optimizer] { return optimizer.OptionsDigest() ^ (last_options_ << 1); },
      .on_difference = [this, &optimizer] { optim::ThrowOptionsDiffer(optimizer, group_.get()); }};
}

chunk::GradientChunkOptions DdpPlugin::State::ChunkOptions(bool overlap) const {
  return {.chunk_bytes = training_.bucket_bytes,
          .overlap = overlap,
          .reproducible = options_.reproducible,
          .key_of = cut_.bucket_key};
}

void DdpPlugin::State::HandOverGradients(nn::Module& model, optim::Optimizer& optimizer,
                                         std::vector<autograd::ParameterPtr>& reduced) {
  // One save has the states of all ranks, including ranks that hold other parts.
  const bool cut = cut_.statistics_group != nullptr;
  const int copies = comm::GroupSize(group_);
  const int rank = group_ == nullptr ? 0 : group_->rank();
  const int parts = comm::GroupSize(cut_.statistics_group);
  const int part = cut ? cut_.statistics_group->rank() : 0;
  local_->SetRanks({.group = group_,
                    .statistics = cut_.statistics_group,
                    .rank = rank * parts + part,
                    .num_ranks = copies * parts});
  hooks_.emplace_back(model.AddPreForwardHook(
      [local = local_, optimizer = Watched(&optimizer)](nn::Module& root, const Tensor&) {
        if (!root.is_training() && !optimizer.is_gone()) local->SyncReplicas();
      }));
  hooks_.emplace_back(optimizer.AddPreStepHook([this](optim::Optimizer&) { CheckSameAnswer(); }));
  hooks_.emplace_back(optimizer.AddStepHook([this](optim::Optimizer&) { stays_local_.reset(); }));
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
  chunks.agreement = AgreeOnOptions(optimizer);
  local_gradients_ = std::make_unique<chunk::GradientChunks>(std::move(may_stay), group_, chunks);
}

std::vector<autograd::ParameterPtr> DdpPlugin::State::SplitOff(const nn::Module& model,
                                                               optim::Optimizer& optimizer) const {
  std::vector<autograd::ParameterPtr> reduced = HeldParameters(model);
  const int num_ranks = comm::GroupSize(group_);
  if (cut_.statistics_group != nullptr) {
    optim::SumStatistics(optimizer, cut_.statistics_group);
    return reduced;
  }
  const bool needs_whole = options_.reproducible || optimizer.step_options().max_norm > 0;
  if (num_ranks == 1 || needs_whole) return reduced;
  // HandOverGradients handles a LocalGradientOptimizer, whose gradients are local only in some
  // steps.
  if (dynamic_cast<optim::LocalGradientOptimizer*>(&optimizer) != nullptr) return reduced;
  std::set<const autograd::Parameter*> addends;
  optimizer.ForEachView([&](optim::ParamView& view, int group) {
    if (!optimizer.ReducesOwnGrad(view, group)) return;
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

void DdpPlugin::State::CheckSameAnswer() const {
  if (group_ == nullptr || !stays_local_) return;
  APOGEE_CHECK(local_->TakesLocalGrad(local_group_) == *stays_local_,
               "ddp: an optimizer state of another phase was loaded since the last backward, whose "
               "gradients are ",
               *stays_local_ ? "each rank's own" : "means over the ranks",
               " and do not fit that phase; call zero_grad() and backward again");
}

void DdpPlugin::State::AskWhichStay() {
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
    parameter->set_grad_place(local_place_);
  }
}

bool DdpPlugin::State::BeginBackward() {
  const bool reduce = guard_->OnBackward();
  if (local_gradients_ != nullptr) AskWhichStay();
  return reduce;
}

void DdpPlugin::State::RunPass(const std::function<void()>& backward,
                               const chunk::GradientPass& pass) {
  std::vector<chunk::GradientChunks*> all;
  if (local_gradients_ != nullptr) all.push_back(local_gradients_.get());
  all.push_back(gradients_.get());
  chunk::GradientChunks::Run(all, backward, pass);
}

void DdpPlugin::State::Backward(const Tensor& loss) {
  const bool reduce = BeginBackward();
  if (fused_ != nullptr) return fused_->fused_backward(loss);
  RunPass([&] { autograd::Backward(loss, {.grad = guard_->LossGradient(loss)}); },
          {.reduce = reduce});
}

DdpPlugin::DdpPlugin(comm::GroupPtr group, const TrainingOptions& training,
                     const DdpOptions& options)
    : DdpPlugin(std::move(group), training, options, CutParameters{}) {}

DdpPlugin::DdpPlugin(comm::GroupPtr group, const TrainingOptions& training,
                     const DdpOptions& options, const CutParameters& cut)
    : state_(std::make_unique<State>(std::move(group), training, options, cut)) {}

DdpPlugin::~DdpPlugin() = default;

void DdpPlugin::Check(const nn::Module& model, optim::Optimizer& optimizer) const {
  state_->Check(model, optimizer);
}
optim::Optimizer& DdpPlugin::Configure(nn::Module& model, optim::Optimizer& optimizer) {
  return state_->Configure(model, optimizer);
}
void DdpPlugin::Backward(const Tensor& loss, optim::Optimizer& /*optimizer*/) {
  state_->Backward(loss);
}
std::shared_ptr<void> DdpPlugin::NoSync() { return state_->guard_->NoSync(); }
comm::GroupPtr DdpPlugin::group() const { return state_->group_; }
comm::GroupPtr DdpPlugin::data_group() const { return state_->group_; }
optim::LossScaler* DdpPlugin::loss_scaler() { return state_->guard_->loss_scaler(); }
double DdpPlugin::loss_scale() const { return state_->guard_->loss_scale(); }
BackwardPasses& DdpPlugin::passes() { return *state_; }

}  // namespace apogee
