// SPDX-License-Identifier: Apache-2.0

// The gradient clipping of ScaledAdam. Its threshold is a multiple of the median of recent gradient
// norms. The kernel median_clip computes the factor from a group's norm and the state below:
//   min(1, threshold / norm)
//   0 for a norm that is not finite
//   1 in the first step and while there is no threshold, if the norm is finite
//
//   Tensor state = PackClipping(group_state, options.period, context);
//   ... median_clip(state) in every step ...
//   group_state = UnpackClipping(state);                      // waits for a GPU
//
// Keys of the GroupState: "clip_step", "model_norms" [period], "model_norm_threshold" (absent until
// known), "num_clipped", and, from the last time the threshold was set, "quartiles" [5] and
// "percent_clipped".
#ifndef APOGEE_OPTIM_STEP_MEDIAN_CLIPPING_H_
#define APOGEE_OPTIM_STEP_MEDIAN_CLIPPING_H_

#include <cstdint>

#include "apogee/optim/adam/scaled_adam_kernels.h"
#include "apogee/optim/states/state_store.h"

namespace apogee::optim {

// A MedianClippingState with `period` norms after it, in the memory of `context`, and its inverse.
Tensor PackClipping(const GroupState& state, int64_t period, const ContextPtr& context);
GroupState UnpackClipping(const Tensor& packed);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_STEP_MEDIAN_CLIPPING_H_
