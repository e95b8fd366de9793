// SPDX-License-Identifier: Apache-2.0

// Sequence parallelism, Ulysses style (Jacobs et al., "DeepSpeed Ulysses", 2023): attention over
// sequences whose tokens are sharded. All-to-alls around attention exchange heads for tokens, so
// inside a rank has all tokens of some heads.
//
//   Tensor out = AllToAllAttention(q, k, v, group);   // [B, T / n, H, d] -> [B, T / n, H, d]
//
// Rank r of n holds tokens [r T / n, (r + 1) T / n). Apply rotary positions before. Throws Error
// with the numbers unless the group's size divides both H (query heads) and K (key-value heads).
//
// Every rank of the group calls. Forward and backward each run four all-to-alls (q, k, v, result)
// and wait for them; a rank sends and receives (2 H + 2 K) d T / n elements per sample.
#ifndef APOGEE_NN_PARALLEL_ALL_TO_ALL_ATTENTION_H_
#define APOGEE_NN_PARALLEL_ALL_TO_ALL_ATTENTION_H_

#include "apogee/comm/group.h"
#include "apogee/nn/attention.h"
#include "apogee/tensor/tensor.h"

namespace apogee::nn::parallel {

// [B, T / n, H, d], this rank's tokens of all heads -> [B, T, H / n, d], all tokens of its heads.
Tensor HeadsToTokens(const Tensor& x, const comm::GroupPtr& group);
// The inverse.
Tensor TokensToHeads(const Tensor& x, const comm::GroupPtr& group);

// `documents`: of the whole sequences; null: none. They need causal attention.
Tensor AllToAllAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                         const comm::GroupPtr& group, const DocumentsPtr& documents = nullptr,
                         const AttentionCoreOptions& options = {});

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_ALL_TO_ALL_ATTENTION_H_
