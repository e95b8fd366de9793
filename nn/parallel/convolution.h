// SPDX-License-Identifier: Apache-2.0

// Convolutions without groups whose channels are sharded over a group, as ColumnLinear and
// RowParallelLinear are for features (linear.h).
//
//   Tensor h = ColumnConvolution(conv1, CopyToGroup(x, group));   // [N, hidden / tp, H, W]
//   Tensor y = RowConvolution(conv2, h, group);                   // [N, out, H, W], on every rank
//
// The layers hold local weights: a column layer its output channels and their bias, a row layer its
// input channels and the whole bias. Every rank of the group must call.
#ifndef APOGEE_NN_PARALLEL_CONVOLUTION_H_
#define APOGEE_NN_PARALLEL_CONVOLUTION_H_

#include "apogee/comm/group.h"
#include "apogee/nn/convolution.h"

namespace apogee::nn::parallel {

// `copy`: a result of CopyToGroup or SharedCopy.
Tensor ColumnConvolution(const Convolution& conv, const Tensor& copy);

// One all-reduce of the product. The bias is added once, after the sum, and every rank gets its
// whole gradient.
Tensor RowConvolution(const Convolution& conv, const Tensor& x, const comm::GroupPtr& group);

// GatherLastDim and SplitLastDim of the channels: [N, C, ..] on each rank <-> [N, size * C, ..].
Tensor GatherChannels(const Tensor& x, const comm::GroupPtr& group);
Tensor SplitChannels(const Tensor& x, const comm::GroupPtr& group);

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_CONVOLUTION_H_
