// SPDX-License-Identifier: Apache-2.0

// Attention over sequences that ranks hold parts of, with an exchange of heads for tokens around it
// (Jacobs et al., "DeepSpeed Ulysses", 2023): inside, a rank has all tokens of some heads.
//
//   Tensor out = AllToAllAttention(q, k, v, group);   // [B, T / n, H, d] -> [B, T / n, H, d]
//
// Rank r holds tokens [r T / n, (r + 1) T / n); rotary positions are applied before. The group's
// size must divide H and K, or it throws Error with the numbers. Every rank calls; one all-to-all
// each of q, k, v and the result, forward and backward: (2 H + 2 K) d T / n elements per sample
// each way.
#ifndef APOGEE_NN_PARALLEL_ALL_TO_ALL_ATTENTION_H_
#define APOGEE_NN_PARALLEL_ALL_TO_ALL_ATTENTION_H_

#include "apogee/comm/group.h"
#include "apogee/tensor/tensor.h"

namespace apogee::nn::parallel {

// This rank's tokens of all heads [B, T / n, H, d] -> all tokens of its heads [B, T, H / n, d].
Tensor HeadsToTokens(const Tensor& x, const comm::GroupPtr& group);
// And back.
Tensor TokensToHeads(const Tensor& x, const comm::GroupPtr& group);

Tensor AllToAllAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                         const comm::GroupPtr& group);

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_ALL_TO_ALL_ATTENTION_H_
