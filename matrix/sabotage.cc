// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/sabotage.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "apogee/core/text/text.h"
#include "apogee/nn/parallel/experts/expert_parallel.h"
#include "apogee/optim/core/group_stat_reducer.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::matrix {
namespace {

class DoneWork : public comm::Work {
 public:
  void Wait() override {}
  bool IsDone() override { return true; }
};

// A step of these optimizers makes two sums of whole matrices; this leaves out the first one.
class LocalMatrices : public optim::StatReducer {
 public:
  explicit LocalMatrices(comm::GroupPtr group) : inner_(std::move(group)) {}
  void Reduce(optim::StatBuffer& buffer) override {
    const bool matrices = std::ranges::any_of(buffer.sum_entries(), [](const auto& entry) {
      return entry.count > 1 && entry.count >= entry.view->layout().logical_shape().numel();
    });
    num_sums_ += matrices ? 1 : 0;
    if (matrices && num_sums_ % 2 == 1) return;
    inner_.Reduce(buffer);
  }
  comm::Group* group() const override { return inner_.group(); }

 private:
  optim::GroupStatReducer inner_;
  int num_sums_ = 0;
};

}  // namespace

std::vector<std::string> SabotageNames() {
  return {"none",
          "local_stats",
          "drop_collective",
          "none_as_zero",
          "no_update",
          "expert_mean",
          "norm_without_ep",
          "aux_loss_per_rank",
          "router_gradient_lost",
          "lora_factor_not_summed",
          "adapter_of_rank_zero",
          "per_micro_batch",
          "update_clipped",
          "local_gram"};
}

Sabotage SabotageFromName(const std::string& name) {
  const std::vector<std::string> names = SabotageNames();
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) Throw(UnknownName("sabotage", name, names));
  return static_cast<Sabotage>(found - names.begin());
}

UnsummedGroup::UnsummedGroup(comm::GroupPtr inner)
    : comm::Group(inner->rank(), inner->world_ranks()), inner_(std::move(inner)) {}

std::shared_ptr<comm::Work> UnsummedGroup::Submit(comm::CollectiveCall call) {
  using comm::CollectiveKind;
  const bool sum = call.op == comm::ReduceOp::kSum;
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      if (sum) return std::make_shared<DoneWork>();
      return inner_->AllReduceAsync(call.output, call.op);
    case CollectiveKind::kReduceScatter: {
      if (!sum) return inner_->ReduceScatterAsync(call.output, call.input, call.op);
      const int64_t count = call.output.numel();
      const Tensor slice = call.input.View({call.input.numel()}).Slice(0, rank() * count, count);
      if (slice.raw() != call.output.raw()) call.output.View({count}).CopyFrom(slice);
      return std::make_shared<DoneWork>();
    }
    case CollectiveKind::kReduce:
      if (sum) return std::make_shared<DoneWork>();
      return inner_->ReduceAsync(call.output, call.root, call.op);
    case CollectiveKind::kAllGather:
      return inner_->AllGatherAsync(call.output, call.input);
    case CollectiveKind::kBroadcast:
      return inner_->BroadcastAsync(call.output, call.root);
    case CollectiveKind::kAllToAll:
      if (!call.input_counts.empty()) {
        return inner_->AllToAllAsync(call.output, call.output_counts, call.input,
                                     call.input_counts);
      }
      return inner_->AllToAllAsync(call.output, call.input);
    case CollectiveKind::kSend:
      return inner_->SendAsync(call.input, call.root);
    case CollectiveKind::kRecv:
      return inner_->RecvAsync(call.output, call.root);
    case CollectiveKind::kBarrier:
      return inner_->BarrierAsync();
  }
  Throw("no such collective");
}

void SabotageExperts(Sabotage sabotage, nn::Module& model, optim::Optimizer& optimizer,
                     const HybridParallelPlugin& plugin) {
  using enum comm::Axis;
  const nn::parallel::ExpertParallel* experts = plugin.expert_parallel();
  const auto ep = static_cast<double>(plugin.mesh().size(kEp));
  if (sabotage == Sabotage::kNormWithoutEp) {
    const comm::GroupPtr others = plugin.mesh().group({kPp, kDp, kSp, kTp});
    optimizer.set_stat_reducer(
        others == nullptr ? nullptr : std::make_unique<optim::GroupStatReducer>(others));
  }
  if (sabotage == Sabotage::kAuxLossPerRank) model.set_batch_sum(nullptr);
  for (const autograd::ParameterPtr& parameter : model.Parameters()) {
    if (!parameter->is_here()) continue;
    double factor = 1;
    if (sabotage == Sabotage::kExpertMean && experts->IsExpert(*parameter)) factor = ep;
    const bool routes = parameter->name().ends_with("mlp.gate.weight");
    if (sabotage == Sabotage::kRouterGradientLost && routes) factor = 0;
    if (factor == 1) continue;
    parameter->AddGradHook([factor](autograd::Parameter& own) {
      if (own.has_grad()) own.set_grad(ops::Scale(own.grad(), factor));
    });
  }
}

void SabotageAdapters(Sabotage sabotage, nn::Module& model, const Plugin& plugin,
                      const HybridParallelPlugin* hybrid) {
  for (const autograd::ParameterPtr& parameter : model.Parameters()) {
    if (!parameter->is_here() || parameter->name().find(".lora_") == std::string::npos) continue;
    double factor = 1;
    if (sabotage == Sabotage::kAdapterOfRankZero) {
      factor = plugin.data_rank() == 0 ? plugin.data_size() : 0;
    }
    if (sabotage == Sabotage::kLoraFactorNotSummed && hybrid != nullptr && !parameter->is_part()) {
      const int tp = hybrid->mesh().size(comm::Axis::kTp);
      factor = static_cast<double>(1 + hybrid->mesh().coordinate(comm::Axis::kTp)) / tp;
    }
    if (factor == 1) continue;
    parameter->AddGradHook([factor](autograd::Parameter& own) {
      if (own.has_grad()) own.set_grad(ops::Scale(own.grad(), factor));
    });
  }
}

void SabotageMatrices(Sabotage sabotage, optim::Optimizer& optimizer, const comm::GroupPtr& group) {
  if (sabotage != Sabotage::kLocalGram || group == nullptr) return;
  optimizer.set_stat_reducer(std::make_unique<LocalMatrices>(group));
}

void StepWithClippedUpdate(optim::Optimizer& optimizer) {
  constexpr double kMaxNorm = 1e-3;
  std::vector<Tensor> before;
  for (optim::ParamView& view : optimizer.views()) before.push_back(view.master().Clone());
  optimizer.step();
  double squares = 0;
  std::vector<Tensor> updates;
  for (optim::ParamView& view : optimizer.views()) {
    const Tensor update = ops::Sub(view.master(), before[updates.size()]);
    for (const double x : update.ToVector<double>()) squares += x * x;
    updates.push_back(update);
  }
  const double factor = std::min(1.0, kMaxNorm / (std::sqrt(squares) + 1e-30));
  optimizer.listeners()->Tell(&StepListener::BeforeWeightsReplaced);
  for (size_t i = 0; i < updates.size(); ++i) {
    optim::ParamView& view = optimizer.views()[i];
    ops::Accumulate(before[i], updates[i], factor);
    view.value().CopyFrom(before[i]);
    if (view.own_master().defined()) view.own_master().CopyFrom(before[i]);
  }
  optimizer.listeners()->Tell(&StepListener::WeightsReplaced);
}

void FillAbsentGradients(optim::Optimizer& optimizer) {
  for (optim::ParamView& view : optimizer.views()) {
    if (!view.trainable() || view.has_grad()) continue;
    const Tensor value = view.value();
    Tensor zeros = Tensor::Zeros(value.shape(), view.compute_dtype(), value.context(),
                                 MemoryCategory::kGradient);
    view.is_shard() ? view.set_grad(std::move(zeros))
                    : view.parameter()->set_grad(std::move(zeros));
  }
}

}  // namespace apogee::matrix
