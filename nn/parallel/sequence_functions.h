// SPDX-License-Identifier: Apache-2.0

// Differentiable functions between whole sequences and the tokens of them that each rank holds. The
// token dim is dim 1 of [samples, tokens, ..].
//
//   Tensor own = SplitTokens(x, part, group, factor);     // [B, T, ..] -> [B, T / n, ..]
//   Tensor whole = GatherTokens(y, part, group, factor);  // the inverse, on every rank
//   Tensor all = GatherSequence(x, tp);                   // input of tensor-parallel layers
//   Tensor sum = ReduceScatterSequence(product, tp, dtype);
//
// Every rank of the group must call, with tensors of the same shape. Each call waits for its
// collective.
#ifndef APOGEE_NN_PARALLEL_SEQUENCE_FUNCTIONS_H_
#define APOGEE_NN_PARALLEL_SEQUENCE_FUNCTIONS_H_

#include <optional>

#include "apogee/comm/group.h"
#include "apogee/layout/sequence_part.h"
#include "apogee/tensor/tensor.h"

namespace apogee::nn::parallel {

// The tokens of `part`, outside of any graph; communicates nothing. Throws Error, with the numbers,
// if the number of tokens cannot be divided among the part's ranks.
Tensor TokensOf(const Tensor& x, const SequencePart& part);
// The whole sequences from every rank's x, outside of any graph: one all-gather of x.
Tensor WholeTokens(const Tensor& x, const SequencePart& part, comm::Group& group);

// `factor`: the group's size if parameter gradients are averaged over the group afterwards, as in
// data parallelism (gradients inside are then `factor` times those outside); 1 if they are summed.
//
// Replicated x -> this rank's tokens. Backward gathers the gradients and divides by factor.
Tensor SplitTokens(const Tensor& x, const SequencePart& part, const comm::GroupPtr& group,
                   double factor);
// This rank's tokens -> all tokens, replicated. Backward takes this rank's tokens of the gradient,
// times factor.
Tensor GatherTokens(const Tensor& x, const SequencePart& part, const comm::GroupPtr& group,
                    double factor);

// Sequence parallelism, Megatron style, for contiguous parts (Korthikanti et al., "Reducing
// activation recomputation in large transformer models", 2022).
//
// [B, T / n, ..] -> [B, T, ..], which each rank then uses differently: one all-gather. Backward
// sums the gradients over the ranks, of this rank's tokens only (one reduce-scatter in the
// gradients' dtype), and rounds the sum to GradDType(x).
Tensor GatherSequence(const Tensor& x, const comm::GroupPtr& group);
// Each rank's addend [B, T, ..] -> this rank's tokens of the sum, rounded to `dtype`: one
// reduce-scatter. Backward is one all-gather of the gradient, rounded to `grad_dtype` before it
// (default: `dtype`).
Tensor ReduceScatterSequence(const Tensor& x, const comm::GroupPtr& group, DType dtype,
                             std::optional<DType> grad_dtype = {});

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_SEQUENCE_FUNCTIONS_H_
