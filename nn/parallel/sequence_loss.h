// SPDX-License-Identifier: Apache-2.0

// The mean of a loss over whole sequences, from each rank's mean over its own tokens.
//
//   Tensor mean = criterion(logits_of_own_tokens, own_targets);
//   Tensor loss = MeanOverSequence(mean, num_own_targets, group);   // the same on every rank
//
// Gradients must be averaged over the group afterwards, as in data parallelism: backward gives each
// rank `size` times the gradient of its part. The mean of a rank without targets is ignored; if no
// rank has any, the loss is NaN. Every rank of the group calls. Forward waits for one all-reduce of
// two f64; backward communicates nothing.
#ifndef APOGEE_NN_PARALLEL_SEQUENCE_LOSS_H_
#define APOGEE_NN_PARALLEL_SEQUENCE_LOSS_H_

#include "apogee/comm/group.h"
#include "apogee/tensor/tensor.h"

namespace apogee::nn::parallel {

// `mean` is a scalar, the mean over `count` targets of this rank.
Tensor MeanOverSequence(const Tensor& mean, int64_t count, const comm::GroupPtr& group);

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_SEQUENCE_LOSS_H_
