// SPDX-License-Identifier: Apache-2.0

// SequenceParallel: a model whose sequences are cut over a group, so that ranks share the memory of
// its activations, and the work, of long sequences.
//
//   SequenceParallel parallel(model, plan, SequenceMode::kRingAttention, sp);
//   parallel.Apply();                            // the model takes whole tokens [B, T] as before
//   Criterion loss = parallel.KeepLogitsCut(nn::CrossEntropyLoss(), -100);
//
// Every rank of the group loads the same batch. The module that the plan calls sequence_module
// takes whole sequences, cuts them, and puts out whole ones; inside, a rank holds its tokens, and
// Module::sequence_part says which. Who calls parts of that module instead of it (a pipeline) calls
// SplitInput before the first and GatherOutput after the last, or, where KeepLogitsCut is in force
// and the model in training mode, gives the last one's output to the criterion as it is.
//
// Modes:
//   kSplitGather    over the tensor-parallel group itself (TensorParallelOptions::cut_sequence):
//                   what runs between cut layers runs on T / n tokens, and gradients of parameters
//                   there are partial: their sum over the group is the gradient (IsPartial).
//   kAllToAll       an axis of its own; heads are exchanged for tokens around attention. The size
//                   must divide a rank's heads, key-value heads too.
//   kRingAttention  an axis of its own; keys and values go around. T divisible by 2 n.
// With an axis of its own gradients are averaged over it, as over data-parallel ranks: gradients
// inside are n times as large. Sequences are checked when they come: Error with the numbers.
#ifndef APOGEE_NN_PARALLEL_SEQUENCE_PARALLEL_H_
#define APOGEE_NN_PARALLEL_SEQUENCE_PARALLEL_H_

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apogee/comm/group.h"
#include "apogee/nn/attention.h"
#include "apogee/nn/parallel/plan.h"
#include "apogee/nn/parallel/sequence_functions.h"

namespace apogee::nn::parallel {

enum class SequenceMode { kSplitGather, kAllToAll, kRingAttention };
// "split_gather", "all_to_all", "ring_attn".
const char* SequenceModeName(SequenceMode mode);
std::optional<SequenceMode> ParseSequenceMode(const std::string& name);

// What keeps `plan` from cutting sequences over `ranks` of `mode`, a line each, when layers are cut
// over `tp`. Empty: nothing.
std::vector<std::string> SequenceProblems(Module& model, const ParallelPlan& plan,
                                          SequenceMode mode, int tp, int ranks);

// How sequences enter and leave what a group cuts; a value.
struct SequenceCut {
  SequencePart part;
  comm::GroupPtr group;
  double factor = 1;  // of gradients inside, see SplitTokens

  Tensor Split(const Tensor& x) const { return SplitTokens(x, part, group, factor); }
  // What is sealed stays so.
  Tensor Gather(const Tensor& x) const {
    const Tensor whole = GatherTokens(x.Unsealed(), part, group, factor);
    return x.is_sealed() ? whole.Sealed(x.why_sealed()) : whole;
  }
  // The same tokens, which nothing may read but the loss that KeepLogitsCut returns.
  Tensor Sealed(const Tensor& y) const;
};

class SequenceParallel {
 public:
  // `group` is not null; `plan` must have no SequenceProblems. Before TensorParallel::Apply.
  SequenceParallel(Module& model, const ParallelPlan& plan, SequenceMode mode,
                   comm::GroupPtr group);
  void Apply();

  SequenceMode mode() const { return mode_; }
  const SequencePart& part() const { return cut_.part; }
  // What the model's first part gets: this rank's tokens of x [B, T, ..].
  Tensor SplitInput(const Tensor& x) const { return cut_.Split(x); }
  // What belongs to this rank's tokens of something that nothing trains.
  Tensor SplitTargets(const Tensor& targets) const { return TokensOf(targets, cut_.part); }
  // Whole sequences of what the model's last part puts out; what is whole already stays.
  Tensor GatherOutput(const Tensor& y, int64_t whole_tokens) const {
    return y.size(1) == whole_tokens ? y : cut_.Gather(y);
  }
  // What stays cut for the loss that KeepLogitsCut returned, sealed to everything else.
  Tensor KeepOutputCut(const Tensor& y) const { return cut_.Sealed(y); }
  // Whether this rank's gradient is only what its tokens add to it, where the parameter is not cut.
  bool IsPartial(const autograd::Parameter& parameter) const {
    return partial_.contains(&parameter);
  }

  // From the call on the model in training mode puts out this rank's tokens; the function returned
  // takes these, or whole ones, with whole targets. To everything else they are sealed: reading
  // them throws Error (Tensor::Sealed). `mean`, of logits and targets: the mean over the targets
  // that are not ignore_index. Null where logits are whole anyway, or where the model does more
  // than its sequence_module.
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
