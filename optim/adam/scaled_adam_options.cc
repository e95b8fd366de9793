// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/adam/scaled_adam.h"
#include "apogee/optim/check_options.h"

namespace apogee::optim {

ScaledAdamOptions ScaledAdamOptions::Icefall() { return {.none_as_zero = true}; }
ScaledAdamOptions ScaledAdamOptions::Icefall2023() {
  return {.none_as_zero = true, .icefall_2023 = true};
}

std::vector<std::string> ScaledAdamOptions::Problems() const {
  OptionProblems problems;
  problems.AtLeastZero("lr", lr);
  problems.AtLeastZero("clipping_scale", clipping_scale);
  problems.Decay("betas[0]", betas[0]);
  problems.Decay("betas[1]", betas[1]);
  problems.AtLeastZero("scalar_lr_scale", scalar_lr_scale);
  problems.AtLeastZero("eps", eps);
  problems.Positive("param_min_rms", param_min_rms);
  problems.Positive("param_max_rms", param_max_rms);
  if (param_min_rms > param_max_rms) {
    problems.Add(internal::Concat("param_min_rms is ", param_min_rms,
                                  ", must be at most param_max_rms, ", param_max_rms));
  }
  problems.Positive("scalar_max", scalar_max);
  if (size_update_period < 1) {
    problems.Add(
        internal::Concat("size_update_period is ", size_update_period, ", must be at least 1"));
  }
  if (clipping_update_period < 4) {
    problems.Add(internal::Concat("clipping_update_period is ", clipping_update_period,
                                  ", must be at least 4 for quartiles to make sense"));
  }
  return problems.list();
}

std::vector<OptionField<ScaledAdamOptions>> ScaledAdamOptions::Fields() {
  using O = ScaledAdamOptions;
  return {{"lr", &O::lr},
          {"clipping_scale", &O::clipping_scale},
          {"betas", &O::betas},
          {"scalar_lr_scale", &O::scalar_lr_scale},
          {"eps", &O::eps},
          {"param_min_rms", &O::param_min_rms},
          {"param_max_rms", &O::param_max_rms},
          {"scalar_max", &O::scalar_max},
          {"size_update_period", &O::size_update_period},
          {"clipping_update_period", &O::clipping_update_period},
          {"none_as_zero", &O::none_as_zero},
          {"icefall_2023", &O::icefall_2023}};
}

}  // namespace apogee::optim
