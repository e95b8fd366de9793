// SPDX-License-Identifier: Apache-2.0

// The mean of a loss over whole sequences, from the means over the parts of them that ranks hold.
//
//   Tensor mean = criterion(logits_of_own_tokens, own_targets);
//   Tensor loss = MeanOverSequence(mean, num_own_targets, group);   // the same on every rank
//
// Gradients are expected to be averaged over the group afterwards, as in data parallelism: backward
// gives each rank size times the gradient of its part. A rank without targets counts for nothing,
// whatever its mean; without any targets the loss is NaN. Every rank calls; one all-reduce of two
// f64 forward, none backward.
#ifndef APOGEE_NN_PARALLEL_SEQUENCE_LOSS_H_
#define APOGEE_NN_PARALLEL_SEQUENCE_LOSS_H_

#include "apogee/comm/group.h"
#include "apogee/tensor/tensor.h"

namespace apogee::nn::parallel {

// `mean` is a scalar, of `count` targets.
Tensor MeanOverSequence(const Tensor& mean, int64_t count, const comm::GroupPtr& group);

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_SEQUENCE_LOSS_H_
