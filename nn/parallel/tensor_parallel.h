// SPDX-License-Identifier: Apache-2.0

// TensorParallel: shards a model's layers over a group, as a plan says.
//
//   TensorParallel parallel(model, plan, group);   // throws one Error with every problem
//   parallel.Apply();                              // shards values, replaces forwards
//   parallel.LayoutOf(*parameter);                 // the elements that this rank holds
//
// Every rank of the group must do this, with the same model. Before Apply values are whole and
// equal on all ranks; Apply keeps this rank's shard of each, so the model starts with the same
// weights under every tp. Gradients become absent. Afterwards every rank of the group must call the
// model together.
#ifndef APOGEE_NN_PARALLEL_TENSOR_PARALLEL_H_
#define APOGEE_NN_PARALLEL_TENSOR_PARALLEL_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/nn/convolution.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/parallel/functions.h"
#include "apogee/nn/parallel/plan.h"
#include "apogee/nn/parallel/shard.h"

namespace apogee::nn::parallel {

// The reasons why `plan` cannot shard the model over `tp` ranks, a line each. Empty: it can.
//   - rules that select nothing, or a module of the wrong kind
//   - dims and units that tp does not divide
//   - modules that two rules select, parameters that two rules would cut differently
std::vector<std::string> PlanProblems(Module& model, const ParallelPlan& plan, int tp);

struct TensorParallelOptions {
  // Megatron's sequence parallelism: outside of tensor-parallel layers each rank holds its own
  // tokens of each sequence (sequence_parallel.h). Column styles and the head gather tokens; row
  // styles and the embedding reduce-scatter them.
  bool cut_sequence = false;
  // Leaves the forwards of kExperts modules to an ExpertParallel.
  bool keeps_experts = false;
};

class TensorParallel {
 public:
  // `group` is not null. The model must outlive this object.
  TensorParallel(Module& model, ParallelPlan plan, comm::GroupPtr group,
                 const TensorParallelOptions& options = {});
  // `before`, if not null, is called with each parameter before its value is sharded, in the order
  // of Parameters(). It may give the parameter its value, so that no rank needs room for all values
  // at once; or take the parameter away (Parameter::is_here).
  void Apply(const std::function<void(autograd::Parameter&)>& before = nullptr);

  // True if a rule of the plan selects the module.
  bool IsNamed(const Module& module) const;
  // The shard of a sharded parameter; null for a parameter that every rank holds whole.
  const TensorShard* ShardOf(const autograd::Parameter& parameter) const;
  // The elements that this rank holds. A whole parameter has as many replicas as the group has
  // ranks.
  Layout LayoutOf(const autograd::Parameter& parameter) const;
  const Shape& LogicalShape(const autograd::Parameter& parameter) const;
  // The whole value. Collective: every rank of the group calls (one all-gather if it is sharded).
  Tensor Whole(const autograd::Parameter& parameter) const;
  // The same from this rank's shard `part`, for a parameter whose data() holds only a part of the
  // shard (ZeRO stage 3).
  Tensor Whole(const autograd::Parameter& parameter, const Tensor& part) const;

  // From now on the model in training mode returns this rank's columns of the logits, sealed:
  // reading them outside of the returned function throws Error (Tensor::Sealed). In evaluation mode
  // logits are whole. The returned function takes both kinds and computes `loss`. Returns null if
  // the plan names no output_module.
  using Loss = std::function<Tensor(const Tensor& logits, const Tensor& targets)>;
  Loss KeepLogitsCut(const CrossEntropyLoss& loss);

 private:
  void Replace(Module& module, const PlanRule& rule);
  // Of a parameter that is cut: this rank's part of its value.
  Tensor CutValue(const autograd::Parameter& parameter) const;
  // Which elements of a parameter that is cut a rank holds.
  Layout LayoutOn(int rank, const autograd::Parameter& parameter) const;
  Tensor WholeBytes(const autograd::Parameter& parameter, const Tensor& part) const;
  // The ranks over which gradients of whole parameters in column layers are added up. Under
  // cut_sequence these of all whole parameters are addends, which are added up later: null.
  comm::GroupPtr AddsUp() const { return options_.cut_sequence ? nullptr : group_; }
  void ReplaceNorm(Module& module, ParallelStyle style);
  void ReplaceConvolution(Convolution& conv, ParallelStyle style);
  // The input of column layers: one copy for all that are called with the same tensor.
  Module::ForwardFunction SharedInput() const;
  void ReplaceVocabulary(Module& module);

  Module& model_;
  ParallelPlan plan_;
  comm::GroupPtr group_;
  TensorParallelOptions options_;
  std::vector<std::pair<Module*, const PlanRule*>> modules_;
  std::map<const autograd::Parameter*, TensorShard> shards_;
  std::map<const autograd::Parameter*, Shape> logical_shapes_;
  // By stored parameter: quantized weights that are cut. shards_ has the shards of their weights.
  std::map<const autograd::Parameter*, std::shared_ptr<QuantizedWeight>> quantized_;
  Linear* output_ = nullptr;
  bool cuts_channels_ = false;  // by a convolution of style column
  std::shared_ptr<SharedCopy> shared_copy_;
  std::shared_ptr<bool> keep_logits_cut_ = std::make_shared<bool>(false);
};

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_TENSOR_PARALLEL_H_
