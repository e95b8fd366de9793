// SPDX-License-Identifier: Apache-2.0

// SequenceParallel: shards a model's sequences over a group, so that each rank has the activations,
// and does the work, of some tokens of every sequence.
//
//   SequenceParallel parallel(model, plan, SequenceMode::kRingAttention, sp);
//   parallel.Apply();                            // the model takes whole tokens [B, T] as before
//   SequenceParallel::Loss loss = parallel.KeepLogitsCut(nn::CrossEntropyLoss(), -100);
//
// Every rank of the group loads the same batch. The module that the plan names as sequence_module
// still takes and returns whole sequences; inside, a rank holds its own tokens
// (Module::sequence_part). Code that runs parts of that module one by one (a pipeline) calls
// SplitInput before the first part and GatherOutput after the last. With KeepLogitsCut in force and
// the model in training mode, it passes the last part's output to the criterion without
// GatherOutput.
//
// Modes:
//   kSplitGather    Megatron's sequence parallelism, over the tensor-parallel group itself (set
//                   TensorParallelOptions::cut_sequence): code between tensor-parallel layers runs
//                   on T / n tokens. Gradients of parameters there are partial; their sum over the
//                   group is the gradient (IsPartial).
//   kAllToAll       Ulysses, over a mesh axis of its own: exchanges heads for tokens around
//                   attention. A rank's heads and key-value heads must be divisible by n.
//   kRingAttention  Over a mesh axis of its own: keys and values travel around a ring of ranks. T
//                   must be divisible by 2 n.
// kAllToAll and kRingAttention average gradients over their axis, as over data-parallel ranks;
// gradients inside the sequence-parallel part are n times as large before that. The forward of a
// sequence whose length is not divisible throws Error with the numbers.
#ifndef APOGEE_NN_PARALLEL_SEQUENCE_PARALLEL_H_
#define APOGEE_NN_PARALLEL_SEQUENCE_PARALLEL_H_

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/nn/attention.h"
#include "apogee/nn/parallel/plan.h"
#include "apogee/nn/parallel/sequence_functions.h"

namespace apogee::nn::parallel {

// The reasons why `plan` cannot shard sequences over `ranks` ranks in `mode` with tensor-parallel
// size `tp`, a line each. Empty: it can.
std::vector<std::string> SequenceProblems(Module& model, const ParallelPlan& plan,
                                          SequenceMode mode, int tp, int ranks);

// How sequences enter and leave the sequence-parallel part of a model; a value.
struct SequenceCut {
  SequencePart part;
  comm::GroupPtr group;
  double factor = 1;  // of gradients inside, see SplitTokens

  Tensor Split(const Tensor& x) const { return SplitTokens(x, part, group, factor); }
  // The result is sealed if x is. Throws Error for logits that are not computed
  // (autograd::IsDeferred): their criterion must be one that KeepLogitsCut made.
  Tensor Gather(const Tensor& x) const;
  // The same tokens, sealed: reading them throws Error, except in the loss that KeepLogitsCut
  // returns.
  Tensor Sealed(const Tensor& y) const;
};

class SequenceParallel {
 public:
  // `group` is not null; SequenceProblems must be empty. Make it before TensorParallel::Apply.
  SequenceParallel(Module& model, const ParallelPlan& plan, SequenceMode mode,
                   comm::GroupPtr group);
  void Apply();

  SequenceMode mode() const { return mode_; }
  const SequencePart& part() const { return cut_.part; }
  // This rank's tokens of x [B, T, ..], the input of the model's first part.
  Tensor SplitInput(const Tensor& x) const { return cut_.Split(x); }
  // Whole sequences from the output of the model's last part; an output that is whole already is
  // returned. One all-gather.
  Tensor GatherOutput(const Tensor& y, int64_t whole_tokens) const {
    return y.size(1) == whole_tokens ? y : cut_.Gather(y);
  }
  // The output sealed, for the loss that KeepLogitsCut returned.
  Tensor KeepOutputCut(const Tensor& y) const { return cut_.Sealed(y); }
  // True if this rank's gradient of a parameter that is not sharded covers its own tokens only.
  bool IsPartial(const autograd::Parameter& parameter) const {
    return partial_.contains(&parameter);
  }

  // From now on the model in training mode returns this rank's tokens, sealed: reading them outside
  // of the returned function throws Error (Tensor::Sealed). The returned function takes them, or
  // whole logits, with whole targets. `mean` is given logits and targets, and returns the mean over
  // the targets other than ignore_index. Returns null if logits are whole anyway (kSplitGather) or
  // if sequence_module is not the whole model.
  using Loss = std::function<Tensor(const Tensor& logits, const Tensor& targets)>;
  Loss KeepLogitsCut(Loss mean, int64_t ignore_index);

 private:
  const SequenceMode mode_;
  SequenceCut cut_;
  bool is_model_ = false;  // module_ is the model
  Module* module_ = nullptr;
  std::vector<std::pair<Module*, const ParallelStyle>> styles_;
  std::set<const autograd::Parameter*> partial_;
  std::shared_ptr<bool> keep_logits_cut_ = std::make_shared<bool>(false);
};

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_SEQUENCE_PARALLEL_H_
