// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/functions/loss.h"

#include <algorithm>
#include <vector>

#include "apogee/autograd/functions/loss_node.h"
#include "apogee/autograd/head/deferred_logits.h"
#include "apogee/autograd/saved_tensor.h"
#include "apogee/tensor/ops/nn.h"

namespace apogee::autograd {
namespace {

class CrossEntropyNode : public LossNode {
 public:
  CrossEntropyNode(const Tensor& logits, const Tensor& targets,
                   const ops::CrossEntropyResult& forward, int64_t ignore_index,
                   double label_smoothing)
      : LossNode(forward.num_targets),
        logits_(logits),
        targets_(targets),
        lse_(forward.lse),
        ignore_index_(ignore_index),
        label_smoothing_(label_smoothing) {}
  const char* name() const override { return "cross_entropy"; }

  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    const Tensor targets = targets_.Take(context), lse = lse_.Take(context);
    return {ops::CrossEntropyBackward(logits_.Take(context), targets, lse, ignore_index_, grads[0],
                                      num_targets(), label_smoothing_)};
  }
  void ReleaseSaved() override {
    for (SavedTensor* saved : {&logits_, &targets_, &lse_}) saved->Reset();
  }

 private:
  SavedTensor logits_, targets_, lse_;
  int64_t ignore_index_;
  double label_smoothing_;
};

}  // namespace

Tensor CrossEntropy(const Tensor& logits_in, const Tensor& targets_in, int64_t ignore_index,
                    double label_smoothing) {
  if (IsDeferred(logits_in)) {
    return DeferredCrossEntropy(logits_in, targets_in, ignore_index, label_smoothing);
  }
  const Tensor logits = logits_in.Detach().Contiguous();
  const Tensor targets = targets_in.Detach().Contiguous();
  const ops::CrossEntropyResult forward =
      ops::CrossEntropyForward(logits, targets, ignore_index, label_smoothing);
  Tensor loss = forward.loss;
  if (NeedsGrad({logits_in})) {
    Attach(
        loss,
        std::make_shared<CrossEntropyNode>(logits, targets, forward, ignore_index, label_smoothing),
        {logits_in});
  }
  return loss;
}

std::optional<int64_t> NumTargetsOf(const Tensor& loss) {
  constexpr size_t kMaxNodes = 64;
  std::vector<const Node*> nodes;
  const auto add = [&nodes](const Edge& edge) {
    if (edge.node == nullptr || nodes.size() == kMaxNodes) return;
    if (std::ranges::find(nodes, edge.node.get()) == nodes.end()) nodes.push_back(edge.node.get());
  };
  add(EdgeOf(loss));
  std::optional<int64_t> targets;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (const auto* node = dynamic_cast<const LossNode*>(nodes[i])) {
      targets = targets.value_or(0) + node->num_targets();
    } else {
      for (const Edge& edge : nodes[i]->edges()) add(edge);
    }
  }
  return targets;
}

}  // namespace apogee::autograd
