// SPDX-License-Identifier: Apache-2.0

// GroupStatReducer: sums statistics over the ranks of a group. Each phase costs one all-reduce of
// sums and one of maxima, if it has any.
//
//   optimizer.set_stat_reducer(std::make_unique<GroupStatReducer>(world.group()));
//
// Every rank of the group must call step() together, with the same parameters active. Sums add in
// rank order and are the same bits on every rank. Elements that several ranks hold are already
// weighted (StatBuffer::CountReplicasOnce).
//
// AddendStatReducer: for ranks that hold whole parameters, whose statistics need no reduction. It
// reduces only the numbers of views whose gradient is unreduced (ParamView::partial_grad), packed.
#ifndef APOGEE_OPTIM_CORE_GROUP_STAT_REDUCER_H_
#define APOGEE_OPTIM_CORE_GROUP_STAT_REDUCER_H_

#include <utility>

#include "apogee/comm/group.h"
#include "apogee/optim/core/stats.h"
#include "apogee/optim/optimizer.h"

namespace apogee::optim {

// Prepares an optimizer whose views are parts of parameters, spread over the ranks of `group`: sets
// a GroupStatReducer and assigns owners (owners.h). Every rank of the group must call. Null: does
// nothing.
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
  // `group`: the ranks that hold addends of one gradient. `parts`: the ranks that hold parts of one
  // parameter; all numbers are then reduced over these ranks, too. Null: parameters are whole.
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

#endif  // APOGEE_OPTIM_CORE_GROUP_STAT_REDUCER_H_
