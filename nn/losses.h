// SPDX-License-Identifier: Apache-2.0

// Losses as callables, for Booster's `criterion`. Each is a mean, and throws Error for operands
// that do not fit.
//
//   nn::CrossEntropyLoss criterion{.label_smoothing = 0.1};
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
  double label_smoothing = 0;  // autograd::CrossEntropy
  Tensor operator()(const Tensor& logits, const Tensor& targets) const {
    return autograd::CrossEntropy(logits, targets, ignore_index, label_smoothing);
  }
};

// The losses below take an output and targets of one shape and floating dtype, and return a scalar
// of f32 (f64 for f64). Targets get no gradient.

// The mean of (output - target)^2.
struct MseLoss {
  Tensor operator()(const Tensor& output, const Tensor& targets) const;
};

// The mean of |output - target|.
struct L1Loss {
  Tensor operator()(const Tensor& output, const Tensor& targets) const;
};

// The mean of the binary cross entropy between sigmoid(logits) and targets in [0, 1], computed from
// the logits without overflow.
struct BceWithLogitsLoss {
  Tensor operator()(const Tensor& logits, const Tensor& targets) const;
};

// The Kullback-Leibler divergence of the targets, probabilities along the last dim, from
// exp(log_probs): summed over the last dim, and the mean over the others.
struct KlDivLoss {
  Tensor operator()(const Tensor& log_probs, const Tensor& targets) const;
};

// The mean over rows (the last dim) of 1 - cos(output, target). A row of zeros has a cosine of 0.
struct CosineLoss {
  Tensor operator()(const Tensor& output, const Tensor& targets) const;
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
