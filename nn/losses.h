// Losses as callables, for Booster's `criterion`.
//
//   nn::CrossEntropyLoss criterion;
//   Tensor loss = criterion(model(tokens), targets);
#ifndef APOGEE_NN_LOSSES_H_
#define APOGEE_NN_LOSSES_H_

#include "apogee/autograd/functions/loss.h"

namespace apogee::nn {

// Mean over the targets that are not ignore_index; logits [.., V], targets i64 [..].
struct CrossEntropyLoss {
  int64_t ignore_index = -100;
  Tensor operator()(const Tensor& logits, const Tensor& targets) const {
    return autograd::CrossEntropy(logits, targets, ignore_index);
  }
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_LOSSES_H_
