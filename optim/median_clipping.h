// The gradient clipping of ScaledAdam: the threshold is a multiple of the median of the norms of
// the last steps. A pure function of the group's norm and of what is remembered of earlier ones.
//
//   MedianClipping clipping(state, {.scale = 2, .period = 100});   // state: GroupState of the
//   group double factor = clipping.Next(norm);                           // gradients are
//   multiplied by it
//
// `state` keeps "clip_step", "model_norms" [period], "model_norm_threshold" (absent until known),
// "num_clipped", and of the last time the threshold was set "quartiles" [5] and "percent_clipped".
#ifndef APOGEE_OPTIM_MEDIAN_CLIPPING_H_
#define APOGEE_OPTIM_MEDIAN_CLIPPING_H_

#include <cstdint>

#include "apogee/optim/state_dict.h"

namespace apogee::optim {

struct MedianClippingOptions {
  double scale = 0;  // 0: no clipping
  int64_t period = 100;
  // Set the threshold, doubled, after 10, 20 and 40 steps too, when the norms may still change
  // fast.
  bool early_estimates = true;
};

class MedianClipping {
 public:
  MedianClipping(GroupState& state, const MedianClippingOptions& options)
      : state_(state), options_(options) {}

  // Of the step whose gradients have `norm`: min(1, threshold / norm); 0 for a norm that is not
  // finite, and 1 at the first step and until there is a threshold.
  double Next(double norm);

 private:
  void SetThreshold(int64_t step, bool early);
  double& Number(const char* name);

  GroupState& state_;
  MedianClippingOptions options_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_MEDIAN_CLIPPING_H_
