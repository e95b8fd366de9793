// SPDX-License-Identifier: Apache-2.0

// Which optimizers' steps can be launched as one CUDA graph (tensor/cuda/cuda_graph_call.h): those
// whose host reads nothing that the GPU computes.
//
//   CheckStepInGraph(optimizer);                          // throws Error, which says why not
//   call.Run([&] { optimizer.step(); });
#ifndef APOGEE_OPTIM_STEP_STEP_IN_GRAPH_H_
#define APOGEE_OPTIM_STEP_STEP_IN_GRAPH_H_

#include "apogee/optim/optimizer.h"

namespace apogee::optim {

// Throws Error if a step with the present options could not be part of a graph. Waits for the
// outcome of the last step, as step() does. Changes nothing.
void CheckStepInGraph(const Optimizer& optimizer);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_STEP_STEP_IN_GRAPH_H_
