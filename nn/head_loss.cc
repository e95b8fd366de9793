// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/head_loss.h"

#include <string>

#include "apogee/autograd/head/deferred_logits.h"
#include "apogee/core/lifetime.h"

namespace apogee::nn {
namespace {

Linear& Alive(const Watched<Linear>& head) {
  APOGEE_CHECK(!head.is_gone(),
               "cross_entropy: the model that returned these logits, which are not computed yet "
               "(head_chunks), has been destroyed; keep it until its loss has been computed");
  return *head;
}

}  // namespace

Tensor HeadLoss::Defer(Linear& head, const Tensor& x, int64_t num_chunks) {
  APOGEE_CHECK(num_chunks > 0, "head loss: the number of chunks must be positive, got ",
               num_chunks);
  Shape shape = x.shape();
  shape.Set(-1, head.vocab_size());
  if (shape.rank() > 2) shape.Set(-2, x.size(-2) * head.gathered_ranks());
  const Watched<Linear> watched(&head);
  const autograd::DeferredProduct product{
      .whole = [watched](const Tensor& hidden) { return Alive(watched)(hidden); },
      .cross_entropy =
          [watched, num_chunks](const Tensor& hidden, const Tensor& targets, int64_t ignore_index,
                                double label_smoothing) {
            Linear& alive = Alive(watched);
            HeadLoss loss(targets, {.num_pieces = num_chunks,
                                    .layout = alive.layout(),
                                    .soft_cap = alive.soft_cap(),
                                    .ignore_index = ignore_index,
                                    .label_smoothing = label_smoothing});
            return loss.Call(alive, hidden);
          }};
  return autograd::DeferLogits(
      x, shape, product,
      internal::Concat("these logits of \"", head.full_name(),
                       "\" are not computed: with head_chunks the model returns them so in "
                       "training, for a cross entropy, which computes them in chunks of tokens. "
                       "Use nn::CrossEntropyLoss or autograd::CrossEntropy of the model's own "
                       "output, autograd::WholeLogits(logits) for the logits, or head_chunks = 0"));
}

Tensor HeadLoss::Call(Linear& head, const Tensor& x) {
  APOGEE_CHECK(head.adapters().empty(), "head_chunks: \"", head.full_name(),
               "\" has adapters, and chunks are computed of a plain head only; leave the head out "
               "of the adapter's target_modules, or set head_chunks = 0");
  APOGEE_CHECK(head.bias() == nullptr && !head.activation(), "head_chunks: \"", head.full_name(),
               "\" has a bias or an activation, and chunks are computed without them; set "
               "head_chunks = 0");
  struct Scope {
    Scope(Linear& linear, HeadLoss* loss) : head(linear) { head.set_head_loss(loss); }
    ~Scope() { head.set_head_loss(nullptr); }
    Linear& head;
  } scope(head, this);
  const Tensor loss = head(x);
  APOGEE_CHECK(computed_, "head_chunks: something replaced the forward of \"", head.full_name(),
               "\" and does not compute losses (a rule of the parallel plan other than "
               "ParallelStyle::kVocabulary); change the rule, or set head_chunks = 0");
  return loss;
}

Tensor HeadLoss::Of(const Linear& head, const Tensor& x, const autograd::VocabSplit* split) {
  computed_ = true;
  autograd::HeadLossOptions options = options_;
  options.split = split;
  if (split != nullptr) options.input_grad_dtype = ComputeDType(x.dtype());
  return autograd::HeadCrossEntropy(InputOf(head, x, *head.weight()), head.weight()->value(),
                                    targets_, options);
}

}  // namespace apogee::nn
