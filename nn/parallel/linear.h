// SPDX-License-Identifier: Apache-2.0

// The two halves of a tensor-parallel block, as functions of local weights. The first weight is
// sharded by output columns, the second by input rows; nothing is communicated between the two
// products.
//
//   Tensor h = ColumnParallelLinear(x, w1_local, b1_local, group,
//                                   {.activation = Activation::kGeluTanh});   // [.., hidden / tp]
//   Tensor y = RowParallelLinear(h, w2_local, b2, group);           // [.., d], on every rank
//
// Weights are [out, in] or [in, out], as LinearOptions::layout says; a TensorShard cuts the out dim
// (column) or the in dim (row). Every rank of the group must call; the calls wait for their
// collectives. With a null group (one rank) both are autograd::Linear.
#ifndef APOGEE_NN_PARALLEL_LINEAR_H_
#define APOGEE_NN_PARALLEL_LINEAR_H_

#include <optional>

#include "apogee/autograd/functions/linear.h"
#include "apogee/comm/group.h"

namespace apogee::nn::parallel {

// Replicated x [.., in] -> this rank's columns [.., out_local] of activation(x w + bias). bias is
// [out_local] or undefined. Backward sums the gradients of x over the ranks: one all-reduce.
Tensor ColumnParallelLinear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const comm::GroupPtr& group,
                            const autograd::LinearOptions& options = {});

// The same for an x that is already a result of CopyToGroup or SharedCopy, which layers with the
// same input share.
Tensor ColumnLinear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                    const autograd::LinearOptions& options = {});

// This rank's columns x [.., in_local] -> x w + bias [.., out], replicated; one all-reduce of the
// product. bias is [out], replicated, or undefined; it is added once, after the sum, and every rank
// gets its whole gradient. The result has `out_dtype`, by default x's.
Tensor RowParallelLinear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                         const comm::GroupPtr& group,
                         autograd::WeightLayout layout = autograd::WeightLayout::kOutIn,
                         std::optional<DType> out_dtype = {});

// RowParallelLinear with the result sharded by tokens (ReduceScatterSequence): each rank gets the
// sum of its own tokens and adds the bias to those. The bias's gradient covers only these tokens.
// Gradients are gathered in x's dtype.
Tensor RowParallelLinearOfTokens(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                 const comm::GroupPtr& group,
                                 autograd::WeightLayout layout = autograd::WeightLayout::kOutIn,
                                 std::optional<DType> out_dtype = {});

// x + bias along the last dim, or along dim 1 of [N, C, ..]. Unlike autograd::Add, gives the bias's
// gradient the dtype that the bias's owner asks for.
Tensor AddBias(const Tensor& x, const Tensor& bias, bool of_channels = false);

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_LINEAR_H_
