// SPDX-License-Identifier: Apache-2.0

// TraceModules: records the forward and backward of a model's modules, through their hooks.
//
//   TraceLane* lane = trace.Lane(rank, "compute");
//   nn::TraceModules(model, lane);              // once; null: nothing happens
//   Backward(criterion(model(x), y));
//   // forward: "transformer.h.0.attn", in the span of its parents, in that of "whole model"
//   // backward: the same names, of category "backward"
//
// A module's span in backward begins when the gradient of its output is complete and ends when that
// of its input is. Where neighbours overlap, the one around ends the ones in it. The values
// computed are those of an untraced model. Booster::TraceTo calls this.
//
// The hooks stay with the model, which must not be called once the lane is gone. All on the thread
// that calls the model.
#ifndef APOGEE_NN_TRACE_MODULES_H_
#define APOGEE_NN_TRACE_MODULES_H_

#include "apogee/core/trace.h"
#include "apogee/nn/module.h"

namespace apogee::nn {

void TraceModules(Module& model, TraceLane* lane);

}  // namespace apogee::nn

#endif  // APOGEE_NN_TRACE_MODULES_H_
