// SPDX-License-Identifier: Apache-2.0

// The gradient clipping of ScaledAdam: the threshold is a multiple of the median of the norms of
// the last steps. The factor is a pure function of the group's norm and of what is remembered of
// earlier ones (kernel median_clip): min(1, threshold / norm); 0 for a norm that is not finite, and
// 1 at the first step and until there is a threshold.
//
//   Tensor state = PackClipping(group_state, options.period, context);
//   ... median_clip(state) in every step ...
//   group_state = UnpackClipping(state);                      // waits where it is a GPU's
//
// A GroupState keeps "clip_step", "model_norms" [period], "model_norm_threshold" (absent until
// known), "num_clipped", and of the last time the threshold was set "quartiles" [5] and
// "percent_clipped".
#ifndef APOGEE_OPTIM_MEDIAN_CLIPPING_H_
#define APOGEE_OPTIM_MEDIAN_CLIPPING_H_

#include <cstdint>

#include "apogee/optim/scaled_adam_kernels.h"
#include "apogee/optim/state_dict.h"

namespace apogee::optim {

Tensor PackClipping(const GroupState& state, int64_t period, const ContextPtr& context);
GroupState UnpackClipping(const Tensor& packed);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_MEDIAN_CLIPPING_H_
