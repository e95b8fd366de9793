// SPDX-License-Identifier: Apache-2.0

// HeadLoss: a language model's head and its cross entropy in one call of the head, over chunks of
// tokens.
//
//   // In the model's forward, in place of (*head)(x):
//   Tensor logits = nn::HeadLoss::Defer(*head, x, /*num_chunks=*/8);    // [B, T, V], not computed
//   // Outside, as ever:
//   Tensor loss = criterion(logits, targets);
//
// The cross entropy calls the head as a module, so its hooks, the windows of its parameters and its
// tensor-parallel form run there, once, as they would have run in the model's forward. The head has
// neither a bias nor an activation. Calls throw Error if it has adapters, or if a plan replaces its
// forward in another way than by the vocabulary.
#ifndef APOGEE_NN_HEAD_LOSS_H_
#define APOGEE_NN_HEAD_LOSS_H_

#include "apogee/autograd/head/head_loss.h"
#include "apogee/nn/layers.h"

namespace apogee::nn {

class HeadLoss {
 public:
  // Logits of `head` for x [.., in]: autograd::DeferLogits. The head must live until the loss has
  // been computed, and num_chunks be positive.
  static Tensor Defer(Linear& head, const Tensor& x, int64_t num_chunks);

  // For the head's forward: the loss of the input x. `split`: of the head's weight over ranks;
  // null: it is whole. x's gradient is not rounded if it is one rank's addend.
  Tensor Of(const Linear& head, const Tensor& x, const autograd::VocabSplit* split = nullptr);

 private:
  HeadLoss(const Tensor& targets, const autograd::HeadLossOptions& options)
      : targets_(targets), options_(options) {}
  Tensor Call(Linear& head, const Tensor& x);

  const Tensor targets_;
  autograd::HeadLossOptions options_;
  bool computed_ = false;
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_HEAD_LOSS_H_
