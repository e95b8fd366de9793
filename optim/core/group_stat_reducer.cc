// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/core/group_stat_reducer.h"

#include <memory>

#include "apogee/optim/core/owners.h"

namespace apogee::optim {

void SumStatistics(Optimizer& optimizer, const comm::GroupPtr& group) {
  if (group == nullptr) return;
  AssignOwners(optimizer, group->rank(), group->size());
  optimizer.set_stat_reducer(std::make_unique<GroupStatReducer>(group));
}

void GroupStatReducer::Reduce(StatBuffer& buffer) {
  if (group_ == nullptr) return;
  const Tensor& sums = buffer.sum_values();
  const Tensor& maxima = buffer.max_values();
  std::shared_ptr<comm::Work> works[2];
  if (sums.numel() > 0) works[0] = group_->AllReduceAsync(sums);
  if (maxima.numel() > 0) works[1] = group_->AllReduceAsync(maxima, comm::ReduceOp::kMax);
  for (const auto& work : works) {
    if (work != nullptr) work->Wait();
  }
}

void AddendStatReducer::Reduce(StatBuffer& buffer) {
  if (group_ != nullptr) {
    Reduce(buffer.sum_entries(), buffer.sum_values(), comm::ReduceOp::kSum);
    Reduce(buffer.max_entries(), buffer.max_values(), comm::ReduceOp::kMax);
  }
  parts_.Reduce(buffer);
}

void AddendStatReducer::Reduce(const std::vector<StatBuffer::Entry>& entries, const Tensor& values,
                               comm::ReduceOp op) {
  int64_t count = 0;
  for (const StatBuffer::Entry& entry : entries) {
    count += entry.view->partial_grad() ? entry.count : 0;
  }
  if (count == 0) return;
  if (count == values.numel()) return group_->AllReduce(values, op);
  const Tensor packed =
      Tensor::Empty({count}, values.dtype(), values.context(), MemoryCategory::kWorkspace);
  const auto for_each = [&](const auto& copy) {
    int64_t at = 0;
    for (const StatBuffer::Entry& entry : entries) {
      if (!entry.view->partial_grad()) continue;
      copy(values.Slice(0, entry.offset, entry.count), packed.Slice(0, at, entry.count));
      at += entry.count;
    }
  };
  for_each([](const Tensor& place, const Tensor& part) { part.CopyFrom(place); });
  group_->AllReduce(packed, op);
  for_each([](const Tensor& place, const Tensor& part) { place.CopyFrom(part); });
}

}  // namespace apogee::optim
