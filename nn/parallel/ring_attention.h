// SPDX-License-Identifier: Apache-2.0

// Ring attention (Liu et al., "Ring attention with blockwise transformers", 2023): causal attention
// over sequences whose tokens are sharded. Keys and values travel around a ring of ranks; each rank
// attends to the keys it has at the moment. SequenceLayout::kZigZag balances the causal mask.
//
//   Tensor out = RingAttention(q, k, v, group);   // [B, T / n, H, d] -> [B, T / n, H, d]
//
// Rank r holds pieces r and 2 n - 1 - r of the 2 n pieces of a sequence, in this order. Apply
// rotary positions before. Each step is half a block of work on every rank:
//
//   keys from         queries          keys
//   the rank itself   all              all, under the causal mask
//   a lower rank      all              the first half
//   a higher rank     the second half  all
//
// Results of the steps are kept in f32 (f64 for f64) and rounded once.
//
// Every rank of the group calls. Forward sends and receives k and v n - 1 times (2 K d T / n
// elements per sample each time), while the step computes with the previous ones.
// Backward does the same again. It also passes on the gradients of k and v, in f32 (f64), one step
// behind and n times, so that each ends at the rank that owns its tokens.
#ifndef APOGEE_NN_PARALLEL_RING_ATTENTION_H_
#define APOGEE_NN_PARALLEL_RING_ATTENTION_H_

#include "apogee/comm/group.h"
#include "apogee/nn/attention.h"
#include "apogee/tensor/tensor.h"

namespace apogee::nn::parallel {

// q [B, t, H, d], k and v [B, t, K, d], t even, K divides H (grouped queries). `documents`: of the
// whole sequences, in which no token attends to another document; null: none. Steps over keys that
// no query sees, because of documents or of the options' window, cost their communication only.
// Throws Error unless options.causal.
Tensor RingAttention(const Tensor& q, const Tensor& k, const Tensor& v, const comm::GroupPtr& group,
                     const DocumentsPtr& documents = nullptr,
                     const AttentionCoreOptions& options = {});

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_RING_ATTENTION_H_
