// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/adam/scaled_adam.h"
#include "apogee/optim/options.h"

namespace apogee::optim {

ScaledAdamOptions ScaledAdamOptions::Icefall() { return {.none_as_zero = true}; }
ScaledAdamOptions ScaledAdamOptions::Icefall2023() {
  return {.none_as_zero = true, .icefall_2023 = true};
}

std::vector<OptionField<ScaledAdamOptions>> ScaledAdamOptions::Fields() {
  using O = ScaledAdamOptions;
  using enum OptionCheck;
  return {{"lr", &O::lr, kAtLeastZero, "learning rate, relative to the size of a parameter"},
          {"clipping_scale", &O::clipping_scale, kAtLeastZero, "times the median norm; 0: none"},
          {"betas", &O::betas, kDecay, "decay rates of the step and of the second moment"},
          {"scalar_lr_scale", &O::scalar_lr_scale, kAtLeastZero, "lr of sizes and of scalars"},
          {"eps", &O::eps, kAtLeastZero, "added to the root of the second moment"},
          {"param_min_rms", &O::param_min_rms, kPositive, "lower bound of a parameter's size"},
          {"param_max_rms", &O::param_max_rms, kPositive, "upper bound of it"},
          {"scalar_max", &O::scalar_max, kPositive, "bound of parameters of one element"},
          {"size_update_period", &O::size_update_period, kAtLeastOne, "steps between size updates"},
          {"clipping_update_period", &O::clipping_update_period, {}, "norms behind the median"},
          {"none_as_zero", &O::none_as_zero, {}, "an absent gradient counts as zeros"},
          {"icefall_2023", &O::icefall_2023, {}, "the behaviour of early 2023"}};
}

void ScaledAdamOptions::Check(OptionProblems& problems) const {
  if (param_min_rms > param_max_rms) {
    problems.Add(internal::Concat("param_min_rms is ", param_min_rms,
                                  ", must be at most param_max_rms, ", param_max_rms));
  }
  if (clipping_update_period < 4) {
    problems.Add(internal::Concat("clipping_update_period is ", clipping_update_period,
                                  ", must be at least 4 for quartiles to make sense"));
  }
}

}  // namespace apogee::optim
