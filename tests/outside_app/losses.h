// SPDX-License-Identifier: Apache-2.0

// Losses of the program's own; each is a criterion for Booster::boost.
//
//   auto boosted = booster.boost(model, optimizer, {.criterion = LabelSmoothing{.epsilon = 0.1}});
#ifndef OUTSIDE_APP_LOSSES_H_
#define OUTSIDE_APP_LOSSES_H_

#include "apogee/apogee.h"

namespace outside {

// (1 - epsilon) * cross entropy + epsilon * (logsumexp - mean logit), the mean over all targets.
struct LabelSmoothing {
  double epsilon = 0.1;
  apogee::Tensor operator()(const apogee::Tensor& logits, const apogee::Tensor& targets) const;
};

// The squared distance of the probabilities to the target's one, the mean over all targets.
struct BrierLoss {
  apogee::Tensor operator()(const apogee::Tensor& logits, const apogee::Tensor& targets) const;
};

}  // namespace outside

#endif  // OUTSIDE_APP_LOSSES_H_
