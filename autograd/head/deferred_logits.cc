// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/head/deferred_logits.h"

#include <memory>
#include <utility>
#include <vector>

#include "apogee/autograd/functions/loss.h"
#include "apogee/autograd/node.h"

namespace apogee::autograd {
namespace {

// The identity between `hidden` and the loss: its gradient is that of `hidden`.
class DeferredLogitsNode : public Node {
 public:
  DeferredLogitsNode(const Tensor& hidden, DeferredProduct product)
      : hidden_(hidden.Detach()), grad_dtype_(GradDType(hidden)), product_(std::move(product)) {}
  const char* name() const override { return "deferred_logits"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext&) override {
    return {std::move(grads[0])};
  }
  void ReleaseSaved() override { hidden_ = Tensor(); }

  const DeferredProduct& product() const { return product_; }
  DType grad_dtype() const { return grad_dtype_; }
  const Tensor& hidden() const {
    APOGEE_CHECK(hidden_.defined(),
                 "deferred logits: backward has run over their graph, which freed what they are "
                 "computed from; compute the loss before backward");
    return hidden_;
  }

 private:
  Tensor hidden_;
  DType grad_dtype_;
  DeferredProduct product_;
};

std::shared_ptr<DeferredLogitsNode> NodeOf(const Tensor& logits) {
  const GraphMeta* const meta = MetaOf(logits);
  return meta == nullptr ? nullptr : std::dynamic_pointer_cast<DeferredLogitsNode>(meta->edge.node);
}

// `hidden` as the node's output: gradients of later results pass through the node.
Tensor HiddenOf(const std::shared_ptr<DeferredLogitsNode>& node) {
  Tensor hidden = node->hidden();
  if (node->edges()[0].node == nullptr) return hidden;  // nothing below the head is trained
  AttachOutput(hidden, node, 0);
  SetGradDType(hidden, node->grad_dtype());
  return hidden;
}

}  // namespace

Tensor DeferLogits(const Tensor& hidden, const Shape& shape, const DeferredProduct& product,
                   const std::string& why) {
  // One element stands for all: nothing can read it.
  Tensor logits = Tensor::Empty({1}, hidden.dtype(), hidden.context()).Expand(shape).Sealed(why);
  Attach(logits, std::make_shared<DeferredLogitsNode>(hidden, product), {hidden});
  return logits;
}

bool IsDeferred(const Tensor& logits) { return NodeOf(logits) != nullptr; }

Tensor WholeLogits(const Tensor& logits) {
  const auto node = NodeOf(logits);
  return node == nullptr ? logits : node->product().whole(HiddenOf(node));
}

Tensor DeferredCrossEntropy(const Tensor& logits, const Tensor& targets, int64_t ignore_index,
                            double label_smoothing) {
  const auto node = NodeOf(logits);
  APOGEE_CHECK(node != nullptr, "cross_entropy: these logits are not deferred");
  return node->product().cross_entropy(HiddenOf(node), targets, ignore_index, label_smoothing);
}

}  // namespace apogee::autograd
