#include "apogee/autograd/functions/loss.h"

#include "apogee/autograd/node.h"
#include "apogee/autograd/saved_tensor.h"
#include "apogee/tensor/ops/nn.h"

namespace apogee::autograd {
namespace {

class CrossEntropyNode : public Node {
 public:
  CrossEntropyNode(const Tensor& logits, const Tensor& targets,
                   const ops::CrossEntropyResult& forward, int64_t ignore_index)
      : logits_(logits),
        targets_(targets),
        lse_(forward.lse),
        num_targets_(forward.num_targets),
        ignore_index_(ignore_index) {}
  const char* name() const override { return "cross_entropy"; }

  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    const Tensor targets = targets_.Take(context), lse = lse_.Take(context);
    return {ops::CrossEntropyBackward(logits_.Take(context), targets, lse, ignore_index_, grads[0],
                                      num_targets_)};
  }
  void ReleaseSaved() override {
    for (SavedTensor* saved : {&logits_, &targets_, &lse_}) saved->Reset();
  }

 private:
  SavedTensor logits_, targets_, lse_;
  int64_t num_targets_, ignore_index_;
};

}  // namespace

Tensor CrossEntropy(const Tensor& logits_in, const Tensor& targets_in, int64_t ignore_index) {
  const Tensor logits = logits_in.Detach().Contiguous();
  const Tensor targets = targets_in.Detach().Contiguous();
  const ops::CrossEntropyResult forward = ops::CrossEntropyForward(logits, targets, ignore_index);
  Tensor loss = forward.loss;
  if (NeedsGrad({logits_in})) {
    Attach(loss, std::make_shared<CrossEntropyNode>(logits, targets, forward, ignore_index),
           {logits_in});
  }
  return loss;
}

}  // namespace apogee::autograd
