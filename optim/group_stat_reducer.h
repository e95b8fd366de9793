// SPDX-License-Identifier: Apache-2.0

// GroupStatReducer: totals of statistics over the ranks of a group, one all-reduce of sums and one
// of maxima per phase, whichever of them the phase has.
//
//   optimizer.set_stat_reducer(std::make_unique<GroupStatReducer>(world.group()));
//
// Every rank of the group must call step() together, with the same parameters active. Sums add in
// rank order and give every rank the same bits. Where several ranks of the group hold the same
// elements, the buffer's partials have their weights already (StatBuffer::CountReplicasOnce).
//
// AddendStatReducer: for ranks that hold whole parameters, whose numbers are totals already. It
// reduces, packed, those of views whose gradient is an addend (ParamView::partial_grad), and no
// others.
#ifndef APOGEE_OPTIM_GROUP_STAT_REDUCER_H_
#define APOGEE_OPTIM_GROUP_STAT_REDUCER_H_

#include <utility>

#include "apogee/comm/group.h"
#include "apogee/optim/optimizer.h"
#include "apogee/optim/stats.h"

namespace apogee::optim {

// What an optimizer needs when its views are parts of parameters that `group` holds between its
// ranks: a GroupStatReducer and owners (owners.h). Null: nothing. Every rank calls.
void SumStatistics(Optimizer& optimizer, const comm::GroupPtr& group);

class GroupStatReducer : public StatReducer {
 public:
  explicit GroupStatReducer(comm::GroupPtr group) : group_(std::move(group)) {}
  // Collective.
  void Reduce(StatBuffer& buffer) override;
  comm::Group* group() const override { return group_.get(); }

 private:
  comm::GroupPtr group_;
};

class AddendStatReducer : public StatReducer {
 public:
  // `parts`: the ranks that hold parts of one parameter, over which totals are then summed as well;
  // null: parameters are whole.
  explicit AddendStatReducer(comm::GroupPtr group, comm::GroupPtr parts = nullptr)
      : group_(std::move(group)), parts_(std::move(parts)) {}
  // Collective.
  void Reduce(StatBuffer& buffer) override;
  comm::Group* group() const override { return group_ != nullptr ? group_.get() : parts_.group(); }

 private:
  void Reduce(const std::vector<StatBuffer::Entry>& entries, const Tensor& values,
              comm::ReduceOp op);

  comm::GroupPtr group_;
  GroupStatReducer parts_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_GROUP_STAT_REDUCER_H_
