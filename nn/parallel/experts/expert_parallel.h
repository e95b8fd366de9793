// SPDX-License-Identifier: Apache-2.0

// ExpertParallel: shards the experts of a model's mixtures (nn::Moe) over a group (Lepikhin et al.,
// "GShard", 2020). Rank r of n holds experts [r E / n, (r + 1) E / n) of each layer, whole.
//
//   ExpertParallel experts(model, ep, /*tp=*/nullptr);   // throws Error with every problem
//   experts.HolderOf(*parameter);                        // a rank of ep; -1: every rank has it
//   experts.Apply();                                     // replaces forwards
//
// Every rank routes its own tokens. Per layer, forward exchanges the counts of rows, sends the rows
// to the ranks that hold their experts, and the results back: three all-to-alls. Backward has two.
// A rank's rows are sorted by expert, then by rank, then by token, so that an expert's rows have
// the order of the tokens of all ranks together. A rank without rows takes part with none.
//
// Values of experts that this rank does not hold are not touched: the plugin drops them. The
// gradient of an expert on its holder is the mean over the ranks of `ep` of what their losses give.
// The group is this object's own; ranks must call the model together.
#ifndef APOGEE_NN_PARALLEL_EXPERTS_EXPERT_PARALLEL_H_
#define APOGEE_NN_PARALLEL_EXPERTS_EXPERT_PARALLEL_H_

#include <map>
#include <string>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/nn/module.h"

namespace apogee::nn::parallel {

// The reasons why the experts cannot be sharded over `ep` ranks, a line each. Empty: they can.
std::vector<std::string> ExpertProblems(Module& model, int ep);

class ExpertParallel {
 public:
  // `ep` is not null. `tp`: the ranks that hold a part of each of these experts, if there are
  // several (TensorParallelOptions::keeps_experts). The model must outlive this object.
  ExpertParallel(Module& model, comm::GroupPtr ep, comm::GroupPtr tp);
  void Apply();

  int HolderOf(const Parameter& parameter) const;
  bool IsExpert(const Parameter& parameter) const { return HolderOf(parameter) >= 0; }
  const comm::GroupPtr& group() const { return ep_; }

 private:
  Module& model_;
  comm::GroupPtr ep_, tp_;
  std::map<const Parameter*, int> holders_;
};

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_EXPERTS_EXPERT_PARALLEL_H_
