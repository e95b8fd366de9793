// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/hybrid/hybrid_sequence.h"

#include <utility>
#include <vector>

#include "apogee/core/text/text.h"
#include "apogee/plugins/hybrid/exchange_group.h"
#include "apogee/plugins/replicas.h"

namespace apogee {

void HybridSequence::CheckOptions(std::string& errors) const {
  const int sp = options_.sp_size, tp = options_.tp_size;
  if (sp < 1) AddProblem(errors, "sp_size must be at least 1, got ", sp);
  if (!is_on()) {
    if (sp > 1) {
      AddProblem(errors, "sp_size ", sp,
                 " needs an sp_mode: split_gather, all_to_all or ring_attn");
    }
    return;
  }
  if (uses_tp()) {
    if (tp < 2) {
      AddProblem(errors,
                 "sp_mode split_gather cuts sequences over the tp group and needs a tp_size above "
                 "1, got ",
                 tp);
    }
    if (sp > 1 && sp != tp) {
      AddProblem(errors,
                 "sp_mode split_gather cuts sequences over the tp group: sp_size must be 1 or "
                 "tp_size ",
                 tp, ", got ", sp);
    }
  } else if (sp == 1) {
    AddProblem(errors, "sp_mode ", Name(options_.sp_mode), " needs an sp_size above 1, got 1");
  }
}

void HybridSequence::AddProblems(nn::Module& model, const nn::parallel::ParallelPlan* plan,
                                 const optim::Optimizer& optimizer, std::string& problems) const {
  if (!is_on() || plan == nullptr) return;
  const int ranks = uses_tp() ? options_.tp_size : options_.sp_size;
  for (const std::string& problem :
       nn::parallel::SequenceProblems(model, *plan, options_.sp_mode, options_.tp_size, ranks)) {
    AddProblem(problems, "plan \"", plan->name, "\", ", problem);
  }
  if (uses_tp() && options_.stage == 3 && optimizer.traits().fused_backward) {
    AddProblem(problems, "optimizer ", optimizer.name(),
               " updates inside backward at stage 3, before sp_mode split_gather has summed its "
               "gradients; use another stage or sp_mode");
  }
}

void HybridSequence::Prepare(nn::Module& model, const nn::parallel::ParallelPlan& plan,
                             const comm::Mesh& mesh) {
  if (!is_on()) return;
  const comm::GroupPtr group =
      uses_tp() ? mesh.group(comm::Axis::kTp) : ExchangeGroup(mesh, comm::Axis::kSp);
  parallel_ =
      std::make_unique<nn::parallel::SequenceParallel>(model, plan, options_.sp_mode, group);
}

void HybridSequence::Attach(nn::Module& model, optim::Optimizer& optimizer, const comm::Mesh& mesh,
                            const nn::parallel::TensorParallel* tensor_parallel) {
  if (!is_on()) return;
  parallel_->Apply();
  // Ranks that share sequences have the same samples. The inner plugin cannot know this: its group
  // also has ranks with other samples.
  MaskByPlace(model, mesh.coordinate(comm::Axis::kDp) * mesh.size(comm::Axis::kEp) +
                         mesh.coordinate(comm::Axis::kEp));
  if (!uses_tp()) return;
  std::vector<optim::ParamView*> views;
  for (optim::ParamView& view : optimizer.views()) {
    const autograd::Parameter& parameter = *view.parameter();
    const bool cut = tensor_parallel->ShardOf(parameter) != nullptr;
    if (cut || !parameter.is_here() || !parallel_->IsPartial(parameter)) continue;
    views.push_back(&view);
    // Clipping by hand would use addends.
    if (!view.is_shard() && view.parameter()->grad_place() == nullptr) {
      view.parameter()->set_grad_place(place_);
    }
  }
  partial_ = std::make_unique<PartialGradients>("hybrid_parallel", std::move(views),
                                                mesh.group(comm::Axis::kTp));
  partial_->ListenTo(optimizer);
}

nn::parallel::SequenceParallel::Loss HybridSequence::KeepLogitsCut(
    nn::parallel::SequenceParallel::Loss mean, int64_t ignore_index) {
  return parallel_ == nullptr ? nullptr : parallel_->KeepLogitsCut(std::move(mean), ignore_index);
}

}  // namespace apogee
