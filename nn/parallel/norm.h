// SPDX-License-Identifier: Apache-2.0

// Norms between a column and a row layer, where each rank has only some heads of an activation.
//
//   // Over each head: x [B, T, heads / tp, d], weight [d] on every rank.
//   Tensor q = RmsNormOfHeads(x, weight, 1e-6, group);
//   // Over all heads together: x [B, T, H * d / tp], weight [H * d / tp].
//   Tensor q = RmsNormOfColumns(x, weight_local, 1e-6, group);
//
// Dtypes are those of autograd::RmsNorm; the statistics are f32 (f64 for f64). Every rank of the
// group must call; the calls wait for their collectives. A null group is one rank. A mismatch of
// shapes throws Error. weight_offset is added to every element of the weight (Gemma stores weights
// minus one).
#ifndef APOGEE_NN_PARALLEL_NORM_H_
#define APOGEE_NN_PARALLEL_NORM_H_

#include "apogee/comm/group.h"
#include "apogee/tensor/tensor.h"

namespace apogee::nn::parallel {

// autograd::RmsNorm of this rank's heads. Forward communicates nothing. Backward sums the gradients
// of the weight over the ranks, in f32 (f64): one all-reduce.
Tensor RmsNormOfHeads(const Tensor& x, const Tensor& weight, double eps,
                      const comm::GroupPtr& group, double weight_offset = 0);
// autograd::LayerNorm likewise. The bias may be undefined; if not, backward sums its gradients,
// too.
Tensor LayerNormOfHeads(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                        const comm::GroupPtr& group);

// This rank's columns of autograd::RmsNorm of whole rows. x [.., c] and weight [c] have as many
// columns on every rank. Forward and backward each all-reduce one number of f32 (f64) per row.
Tensor RmsNormOfColumns(const Tensor& x, const Tensor& weight, double eps,
                        const comm::GroupPtr& group, double weight_offset = 0);

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_NORM_H_
