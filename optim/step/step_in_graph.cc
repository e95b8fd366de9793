// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/step/step_in_graph.h"

#include <algorithm>

#include "apogee/optim/step/device_decision.h"

namespace apogee::optim {

void CheckStepInGraph(const Optimizer& optimizer) {
  const auto refuse_if = [&](bool refused, const char* why) {
    APOGEE_CHECK(!refused, "optimizer ", optimizer.name(), ": its step cannot be a CUDA graph, ",
                 why, "; call optimizer.step() instead");
  };
  const std::span<const ParamView> views = optimizer.views();
  refuse_if(
      !std::ranges::all_of(
          views, [](const ParamView& view) { return HasDeviceDecision(*view.value().context()); }),
      "because not all of its parameters are on a GPU");
  refuse_if(optimizer.step_options().nonfinite == NonFinitePolicy::kThrow,
            "because under NonFinitePolicy::kThrow the host must know the decision of the step");
  const OptimizerTraits traits = optimizer.traits();
  refuse_if(traits.projector != nullptr,
            "because in some steps the host computes new bases from the gradients");
  refuse_if(!traits.decides_on_device,
            "because the host reads numbers within it that the GPU computes");
}

}  // namespace apogee::optim
