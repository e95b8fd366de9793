// SPDX-License-Identifier: Apache-2.0

// Losses as callables, for Booster's `criterion`.
//
//   nn::CrossEntropyLoss criterion;
//   Tensor loss = criterion(model(tokens), targets);
//
// Each rank has a part of the batch; a boosted criterion makes the loss the mean over the targets
// of the whole batch. For that Booster must know how many targets are not ignored. It knows the
// number for CrossEntropyLoss. If a loss of your own ignores some targets, wrap it in MeanLoss;
// otherwise every element of the targets counts.
#ifndef APOGEE_NN_LOSSES_H_
#define APOGEE_NN_LOSSES_H_

#include <functional>

#include "apogee/autograd/functions/loss.h"

namespace apogee::nn {

// The number of targets other than ignore_index; targets i64 of any shape. Copies them to the host
// and waits.
int64_t CountTargets(const Tensor& targets, int64_t ignore_index = -100);

// The mean over the targets other than ignore_index, a scalar; logits [.., V], targets i64 [..].
struct CrossEntropyLoss {
  int64_t ignore_index = -100;
  Tensor operator()(const Tensor& logits, const Tensor& targets) const {
    return autograd::CrossEntropy(logits, targets, ignore_index);
  }
};

// A loss that is a mean over some of the targets, with the number of those targets:
//
//   nn::MeanLoss loss{.mean = MyLoss(),
//                     .count = [](const Tensor& t) { return nn::CountTargets(t); }};
//   auto boosted = booster.boost(model, optimizer, {.criterion = loss});
//
// `mean` returns a scalar. When `count` is 0 the value of the mean is ignored, but backward with a
// gradient of 0 must still give gradients of 0 (not NaN).
struct MeanLoss {
  std::function<Tensor(const Tensor& output, const Tensor& targets)> mean;
  std::function<int64_t(const Tensor& targets)> count;
  Tensor operator()(const Tensor& output, const Tensor& targets) const {
    return mean(output, targets);
  }
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_LOSSES_H_
