// SPDX-License-Identifier: Apache-2.0

// Causal attention over sequences that ranks hold parts of: keys and values go around a ring while
// each rank attends to what it has (Liu et al., "Ring attention with blockwise transformers", 2023;
// the zig-zag of SequenceLayout balances the causal mask).
//
//   Tensor out = RingAttention(q, k, v, group);   // [B, T / n, H, d] -> [B, T / n, H, d]
//
// Rank r holds pieces r and 2 n - 1 - r of 2 n, in this order; rotary positions are applied before.
// Its own keys are under the causal mask; of those of a lower rank all its queries see the first
// half, and those of a higher one are all seen by its second half of queries: half a block of work
// in every step, on every rank. Results of the steps are f32 (f64 for f64)
// and are rounded once.
//
// Every rank of the group calls. Forward sends and receives n - 1 times k and v (2 K d T / n
// elements per sample), in the background of the step that works on what came before; backward does
// so again, with their gradients in f32 (f64) one step behind, n times: they end where they began.
#ifndef APOGEE_NN_PARALLEL_RING_ATTENTION_H_
#define APOGEE_NN_PARALLEL_RING_ATTENTION_H_

#include "apogee/comm/group.h"
#include "apogee/tensor/tensor.h"

namespace apogee::nn::parallel {

// q [B, t, H, d], k and v [B, t, K, d], t even, K divides H (grouped queries).
Tensor RingAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                     const comm::GroupPtr& group);

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_RING_ATTENTION_H_
