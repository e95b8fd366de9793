// SPDX-License-Identifier: Apache-2.0

// Recurrent layers whose units are divided over the ranks of a group.
//
//   Tensor y = UnitParallelRecurrent(gru, copy, group, /*gather=*/false);   // [B, T, hidden / tp]
//
// Each rank has the rows of its units in every gate's section of the weights, and computes their
// gates and states. In each step the ranks gather the whole state (one all-gather). In backward
// they sum its gradients, of which each keeps its units' (one all-reduce per step). Results of
// layers below the last are gathered once more, as a whole sequence.
#ifndef APOGEE_NN_PARALLEL_RECURRENT_H_
#define APOGEE_NN_PARALLEL_RECURRENT_H_

#include "apogee/comm/group.h"
#include "apogee/nn/recurrent.h"

namespace apogee::nn::parallel {

// `copy` is x [B, T, features], already a result of CopyToGroup or SharedCopy. Returns this rank's
// units [B, T, hidden / size] or, if `gather`, all. States given to Recurrent::Run are whole. Every
// rank of the group must call, and must run backward; the calls wait for their collectives.
Tensor UnitParallelRecurrent(Recurrent& module, const Tensor& copy, const comm::GroupPtr& group,
                             bool gather);

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_RECURRENT_H_
