// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/step/loss_scaler.h"

#include <algorithm>
#include <string>

#include "apogee/core/error.h"

namespace apogee::optim {

LossScaler::LossScaler(const LossScalerOptions& options)
    : options_(options), scale_(options.initial_scale) {
  std::string errors;
  auto require = [&](bool ok, const char* text) {
    if (!ok) errors += std::string("\n  ") + text;
  };
  require(options.min_scale > 0 && options.min_scale <= options.max_scale,
          "min_scale must be positive and at most max_scale");
  require(options.initial_scale >= options.min_scale && options.initial_scale <= options.max_scale,
          "initial_scale must lie between min_scale and max_scale");
  require(options.growth_factor > 1, "growth_factor must be above 1");
  require(options.backoff_factor > 0 && options.backoff_factor < 1,
          "backoff_factor must lie in (0, 1)");
  require(options.growth_interval >= 1, "growth_interval must be at least 1");
  require(options.hysteresis >= 1, "hysteresis must be at least 1");
  APOGEE_CHECK(errors.empty(), "loss scaler: invalid options:", errors);
}

void LossScaler::Update(bool overflow) {
  if (overflow) {
    good_steps_ = 0;
    if (++overflows_ < options_.hysteresis) return;
    scale_ = std::max(options_.min_scale, scale_ * options_.backoff_factor);
    overflows_ = 0;
    return;
  }
  overflows_ = 0;
  if (++good_steps_ < options_.growth_interval) return;
  scale_ = std::min(options_.max_scale, scale_ * options_.growth_factor);
  good_steps_ = 0;
}

void LossScaler::set_state(const State& state) {
  scale_ = state.scale;
  good_steps_ = state.good_steps;
  overflows_ = state.overflows;
}

}  // namespace apogee::optim
