// SPDX-License-Identifier: Apache-2.0

// TraceModules: records the forward and backward of each of a model's modules, with hooks.
//
//   TraceLane* lane = trace.Lane(rank, "compute");
//   nn::TraceModules(model, lane);              // once; a null lane records nothing
//   Backward(criterion(model(x), y));
//   // forward:  a span "transformer.h.0.attn", nested in its parents' spans, all in "whole model"
//   // backward: spans of the same names, category "backward"
//
// A module's backward span begins when the gradient of its output is complete and ends when the
// gradient of its input is. Spans must nest: a span that ends also ends the spans still open in it.
// Tracing does not change the values computed. Booster::TraceTo calls this.
//
// The hooks stay with the model: don't call the model after the lane is destroyed. Everything is
// recorded on the thread that calls the model.
#ifndef APOGEE_NN_TRACE_MODULES_H_
#define APOGEE_NN_TRACE_MODULES_H_

#include "apogee/core/trace/trace.h"
#include "apogee/nn/module.h"

namespace apogee::nn {

void TraceModules(Module& model, TraceLane* lane);

}  // namespace apogee::nn

#endif  // APOGEE_NN_TRACE_MODULES_H_
