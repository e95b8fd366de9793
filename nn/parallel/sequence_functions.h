// SPDX-License-Identifier: Apache-2.0

// Differentiable functions between whole sequences and the parts of them that ranks hold. The
// sequence is dim 1 of [samples, tokens, ..].
//
//   Tensor own = SplitTokens(x, part, group, factor);     // [B, T, ..] -> [B, T / n, ..]
//   Tensor whole = GatherTokens(y, part, group, factor);  // and back, on every rank
//   Tensor all = GatherSequence(x, tp);                   // what cut layers take
//   Tensor sum = ReduceScatterSequence(product, tp, dtype);
//
// Every rank of the group must call, with tensors of one shape. Collectives are waited for.
#ifndef APOGEE_NN_PARALLEL_SEQUENCE_FUNCTIONS_H_
#define APOGEE_NN_PARALLEL_SEQUENCE_FUNCTIONS_H_

#include "apogee/comm/group.h"
#include "apogee/core/sequence_part.h"
#include "apogee/tensor/tensor.h"

namespace apogee::nn::parallel {

// The tokens of `part`, without a graph. Throws Error, with the numbers, for a sequence that the
// part's ranks do not divide.
Tensor TokensOf(const Tensor& x, const SequencePart& part);
// The whole of what the ranks hold, without a graph: one all-gather of x.
Tensor WholeTokens(const Tensor& x, const SequencePart& part, comm::Group& group);

// Where the group shares sequences but each rank's gradients are means over the group, as in data
// parallelism, gradients inside are `factor` = size times what they are outside; where they are
// sums, factor is 1.
//
// Replicated x -> this rank's tokens; backward gathers and divides by factor.
Tensor SplitTokens(const Tensor& x, const SequencePart& part, const comm::GroupPtr& group,
                   double factor);
// This rank's tokens -> all of them, replicated; backward takes this rank's, times factor.
Tensor GatherTokens(const Tensor& x, const SequencePart& part, const comm::GroupPtr& group,
                    double factor);

// Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022, of
// contiguous parts. [B, T / n, ..] -> [B, T, ..], used differently by each rank: one all-gather;
// backward adds the ranks' gradients of this rank's tokens, one reduce-scatter in the gradients'
// dtype, and rounds the sum to x's dtype.
Tensor GatherSequence(const Tensor& x, const comm::GroupPtr& group);
// Addends [B, T, ..] -> this rank's tokens of the sum, rounded to `dtype`: one reduce-scatter;
// backward is one all-gather.
Tensor ReduceScatterSequence(const Tensor& x, const comm::GroupPtr& group, DType dtype);

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_SEQUENCE_FUNCTIONS_H_
