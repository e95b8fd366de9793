// SPDX-License-Identifier: Apache-2.0

// Losses as callables, for Booster's `criterion`.
//
//   nn::CrossEntropyLoss criterion;
//   Tensor loss = criterion(model(tokens), targets);
//
// A boosted criterion is the mean over the targets of the whole batch, of which each rank has a
// part. Booster knows how many targets count in CrossEntropyLoss. A loss of your own that leaves
// some out says so with MeanLoss; without it every element of the targets counts.
#ifndef APOGEE_NN_LOSSES_H_
#define APOGEE_NN_LOSSES_H_

#include <functional>

#include "apogee/autograd/functions/loss.h"

namespace apogee::nn {

// The number of targets that are not ignore_index; i64 of any shape. Reads them on the host.
int64_t CountTargets(const Tensor& targets, int64_t ignore_index = -100);

// Mean over the targets that are not ignore_index; logits [.., V], targets i64 [..].
struct CrossEntropyLoss {
  int64_t ignore_index = -100;
  Tensor operator()(const Tensor& logits, const Tensor& targets) const {
    return autograd::CrossEntropy(logits, targets, ignore_index);
  }
};

// A mean over some of the targets, and how many these are:
//
//   nn::MeanLoss loss{.mean = MyLoss(), .count = [](const Tensor& t) { return nn::CountTargets(t);
//   }}; auto boosted = booster.boost(model, optimizer, loss);
//
// `mean` returns a scalar. Of targets that count for nothing (count 0) its value does not matter,
// but backward from a gradient of 0 must give gradients of 0.
struct MeanLoss {
  std::function<Tensor(const Tensor& output, const Tensor& targets)> mean;
  std::function<int64_t(const Tensor& targets)> count;
  Tensor operator()(const Tensor& output, const Tensor& targets) const {
    return mean(output, targets);
  }
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_LOSSES_H_
