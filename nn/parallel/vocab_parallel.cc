// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/vocab_parallel.h"

#include <memory>
#include <utility>
#include <vector>

#include "apogee/autograd/functions/embedding.h"
#include "apogee/autograd/node.h"
#include "apogee/autograd/saved_tensor.h"
#include "apogee/nn/parallel/functions.h"
#include "apogee/nn/parallel/sequence_functions.h"
#include "apogee/tensor/ops/cross_entropy_part.h"

namespace apogee::nn::parallel {
namespace {

using autograd::SavedTensor;

class VocabParallelCrossEntropyNode : public autograd::Node {
 public:
  VocabParallelCrossEntropyNode(const Tensor& logits, const Tensor& targets,
                                const ops::CrossEntropyResult& forward, const ops::VocabPart& part,
                                int64_t ignore_index, double label_smoothing)
      : logits_(logits),
        targets_(targets),
        lse_(forward.lse),
        num_targets_(forward.num_targets),
        part_(part),
        ignore_index_(ignore_index),
        label_smoothing_(label_smoothing) {}
  const char* name() const override { return "vocab_parallel_cross_entropy"; }

  std::vector<Tensor> Backward(std::vector<Tensor> grads,
                               const autograd::BackwardContext& context) override {
    const Tensor targets = targets_.Take(context), lse = lse_.Take(context);
    return {ops::CrossEntropyPartBackward(logits_.Take(context), targets, lse, part_, ignore_index_,
                                          grads[0], num_targets_, label_smoothing_)};
  }
  void ReleaseSaved() override {
    for (SavedTensor* saved : {&logits_, &targets_, &lse_}) saved->Reset();
  }

 private:
  SavedTensor logits_, targets_, lse_;
  int64_t num_targets_;
  ops::VocabPart part_;
  int64_t ignore_index_;
  double label_smoothing_;
};

}  // namespace

Tensor VocabParallelEmbedding(const Tensor& ids, const Tensor& table, const ops::VocabPart& part,
                              const comm::GroupPtr& group, int64_t padding_id) {
  return ReduceFromGroup(autograd::Embedding(ids, table, part, padding_id), group);
}

Tensor VocabParallelEmbeddingOfTokens(const Tensor& ids, const Tensor& table,
                                      const ops::VocabPart& part, const comm::GroupPtr& group,
                                      int64_t padding_id) {
  return ReduceScatterSequence(
      autograd::Embedding(GatherSequence(ids, group), table, part, padding_id), group,
      table.dtype());
}

Tensor VocabParallelCrossEntropy(const Tensor& logits_in, const Tensor& targets_in,
                                 const ops::VocabPart& part, const comm::GroupPtr& group,
                                 int64_t ignore_index, double label_smoothing) {
  const Tensor logits = logits_in.Detach().Contiguous();
  const Tensor targets = targets_in.Detach().Contiguous();
  const ops::CrossEntropyPart local =
      ops::CrossEntropyPartForward(logits, targets, part, ignore_index, label_smoothing);
  const Tensor max = local.lse.Clone();
  if (group != nullptr) group->AllReduce(max, comm::ReduceOp::kMax);
  ops::CrossEntropyPartSums(local, max);
  if (group != nullptr) group->AllReduce(local.packed);
  const ops::CrossEntropyResult whole =
      ops::CrossEntropyPartJoin(local, max, targets, ignore_index);
  Tensor loss = whole.loss;
  if (autograd::NeedsGrad({logits_in})) {
    autograd::Attach(loss,
                     std::make_shared<VocabParallelCrossEntropyNode>(logits, targets, whole, part,
                                                                     ignore_index, label_smoothing),
                     {logits_in});
  }
  return loss;
}

}  // namespace apogee::nn::parallel
