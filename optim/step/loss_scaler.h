// SPDX-License-Identifier: Apache-2.0

// LossScaler: the dynamic loss scale of fp16 training (Micikevicius et al., "Mixed precision
// training", ICLR 2018).
//
//   LossScaler scaler({.initial_scale = 65536});
//   optimizer.set_step_options({.loss_scale = scaler.scale()});
//   Backward(loss, scaler.scale());                    // gradients are scale() times too large
//   optimizer.step();                                  // divides them by loss_scale
//   scaler.Update(optimizer.last_step().skip);         // adapts the scale for the next step
//
// The scale changes only between steps, so all micro-batches of a step share it. Not a collective:
// every rank makes the same skip decision and so keeps the same scale.
#ifndef APOGEE_OPTIM_STEP_LOSS_SCALER_H_
#define APOGEE_OPTIM_STEP_LOSS_SCALER_H_

#include <cstdint>

namespace apogee::optim {

struct LossScalerOptions {
  double initial_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  // The scale grows after this many steps in a row without overflow.
  int64_t growth_interval = 1000;
  // The scale backs off at every `hysteresis`-th overflow in a row.
  int hysteresis = 1;
  double min_scale = 1;
  double max_scale = 4294967296.0;
};

class LossScaler {
 public:
  // Throws one Error that lists every invalid option.
  explicit LossScaler(const LossScalerOptions& options = {});

  double scale() const { return scale_; }
  // Call after each step. `overflow`: whether a gradient was not finite, so that the step was
  // skipped.
  void Update(bool overflow);

  // The state for a checkpoint.
  struct State {
    double scale;
    int64_t good_steps;
    int overflows;
  };
  State state() const { return {scale_, good_steps_, overflows_}; }
  void set_state(const State& state);

 private:
  LossScalerOptions options_;
  double scale_;
  int64_t good_steps_ = 0;
  int overflows_ = 0;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_STEP_LOSS_SCALER_H_
