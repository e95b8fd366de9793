// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/sabotage.h"

#include <algorithm>
#include <utility>

#include "apogee/core/text/text.h"

namespace apogee::matrix {
namespace {

class DoneWork : public comm::Work {
 public:
  void Wait() override {}
  bool IsDone() override { return true; }
};

}  // namespace

std::vector<std::string> SabotageNames() {
  return {"none", "local_stats", "drop_collective", "none_as_zero", "no_update"};
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
