// SPDX-License-Identifier: Apache-2.0

// The two halves of a tensor-parallel block, as functions over local weights: the first product is
// cut by output columns, the second by input rows, and nothing is communicated between them.
//
//   Tensor h = ColumnParallelLinear(x, w1_local, b1_local, group,
//                                   {.activation = Activation::kGeluTanh});   // [.., hidden / tp]
//   Tensor y = RowParallelLinear(h, w2_local, b2, group);           // [.., d], on every rank
//
// Weights are [out, in] or [in, out] as LinearOptions::layout says, cut with a TensorShard of the
// out dim (column) or the in dim (row). Every rank of the group must call. A null group is one
// rank: autograd::Linear itself.
#ifndef APOGEE_NN_PARALLEL_LINEAR_H_
#define APOGEE_NN_PARALLEL_LINEAR_H_

#include "apogee/autograd/functions/linear.h"
#include "apogee/comm/group.h"

namespace apogee::nn::parallel {

// Replicated x [.., in] -> this rank's columns [.., out_local] of activation(x w + bias); bias
// [out_local] or undefined. Backward adds the ranks' gradients of x: one all-reduce.
Tensor ColumnParallelLinear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const comm::GroupPtr& group,
                            const autograd::LinearOptions& options = {});

// The same of an x that has gone through CopyToGroup or SharedCopy: layers that share their input
// share its copy.
Tensor ColumnLinear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                    const autograd::LinearOptions& options = {});

// This rank's columns x [.., in_local] -> x w + bias [.., out], replicated: one all-reduce of the
// product. bias [out], replicated or undefined, is added once, after the sum; its gradient is the
// whole one on every rank.
Tensor RowParallelLinear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                         const comm::GroupPtr& group,
                         autograd::WeightLayout layout = autograd::WeightLayout::kOutIn);

// RowParallelLinear whose result is cut by tokens: each rank gets the sum, and adds the bias, of
// its own (ReduceScatterSequence); the bias's gradient is that of these.
Tensor RowParallelLinearOfTokens(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                 const comm::GroupPtr& group,
                                 autograd::WeightLayout layout = autograd::WeightLayout::kOutIn);

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_LINEAR_H_
