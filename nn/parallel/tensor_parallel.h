// SPDX-License-Identifier: Apache-2.0

// TensorParallel: a model cut over a group along a plan.
//
//   TensorParallel parallel(model, plan, group);   // throws one Error with every problem
//   parallel.Apply();                              // cuts values, replaces forwards
//   parallel.LayoutOf(*parameter);                 // what this rank holds of it
//
// Every rank of the group must do so, with the same model. Values are whole, and equal, before
// Apply: it takes this rank's part of each, so that the model starts with the same weights under
// every tp. Gradients become absent. After it every rank of the group must call the model together.
#ifndef APOGEE_NN_PARALLEL_TENSOR_PARALLEL_H_
#define APOGEE_NN_PARALLEL_TENSOR_PARALLEL_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/parallel/functions.h"
#include "apogee/nn/parallel/plan.h"
#include "apogee/nn/parallel/shard.h"

namespace apogee::nn::parallel {

// What keeps `plan` from cutting the model over `tp` ranks, a line each: rules that name nothing or
// a module of another kind, dims and units that tp does not divide, modules that two rules name,
// parameters that are to be cut in two ways. Empty: nothing.
std::vector<std::string> PlanProblems(Module& model, const ParallelPlan& plan, int tp);

struct TensorParallelOptions {
  // Outside of the cut layers each rank holds its tokens of each sequence (sequence_parallel.h cuts
  // them): column styles and the head gather them, row styles and the table scatter their sums.
  bool cut_sequence = false;
};

class TensorParallel {
 public:
  // `group` is not null. The model must outlive this object.
  TensorParallel(Module& model, ParallelPlan plan, comm::GroupPtr group,
                 const TensorParallelOptions& options = {});
  void Apply();

  // Whether a rule of the plan names the module.
  bool IsNamed(const Module& module) const;
  // Of a parameter that is cut; null for one that every rank holds whole.
  const TensorShard* ShardOf(const autograd::Parameter& parameter) const;
  // What this rank holds; whole ones have as many replicas as the group has ranks.
  comm::Layout LayoutOf(const autograd::Parameter& parameter) const;
  const Shape& LogicalShape(const autograd::Parameter& parameter) const;
  // The whole value, put together from all ranks (one all-gather where it is cut). Collective.
  Tensor Whole(const autograd::Parameter& parameter) const;
  // The same from this rank's `part`, for a parameter whose value is elsewhere.
  Tensor Whole(const autograd::Parameter& parameter, const Tensor& part) const;

  // Logits that may stay cut, for a cross entropy that knows; null when the model's output is not
  // what a vocabulary-parallel layer puts out. From the call on the model in training mode returns
  // this rank's columns (in evaluation, whole logits), and the function returned takes both. To
  // everything else the columns are sealed: reading them throws Error (Tensor::Sealed).
  using Loss = std::function<Tensor(const Tensor& logits, const Tensor& targets)>;
  Loss KeepLogitsCut(const CrossEntropyLoss& loss);

 private:
  void Replace(Module& module, const PlanRule& rule);
  void ReplaceVocabulary(Module& module);

  Module& model_;
  ParallelPlan plan_;
  comm::GroupPtr group_;
  TensorParallelOptions options_;
  std::vector<std::pair<Module*, const PlanRule*>> modules_;
  std::map<const autograd::Parameter*, TensorShard> shards_;
  std::map<const autograd::Parameter*, Shape> logical_shapes_;
  Linear* output_ = nullptr;
  std::shared_ptr<SharedCopy> shared_copy_;
  std::shared_ptr<bool> keep_logits_cut_ = std::make_shared<bool>(false);
};

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_TENSOR_PARALLEL_H_
