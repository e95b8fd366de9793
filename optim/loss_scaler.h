// SPDX-License-Identifier: Apache-2.0

// LossScaler: the dynamic loss scale of fp16 training (Micikevicius et al., "Mixed precision
// training", ICLR 2018).
//
//   LossScaler scaler({.initial_scale = 65536});
//   Backward(loss, scaler.scale());                    // gradients are scale() times too large
//   optimizer.step();                                  // divides by the scale that was used
//   scaler.Update(optimizer.last_step().skip);         // grows or backs off for the next step
//
// The scale changes only between steps, so all micro-batches of a step share it. Not a collective:
// every rank gets the same skip decision and so keeps the same scale.
#ifndef APOGEE_OPTIM_LOSS_SCALER_H_
#define APOGEE_OPTIM_LOSS_SCALER_H_

#include <cstdint>

namespace apogee::optim {

struct LossScalerOptions {
  double initial_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  // Steps without overflow before the scale grows.
  int64_t growth_interval = 1000;
  // Overflows in a row that are let pass before the scale backs off.
  int hysteresis = 1;
  double min_scale = 1;
  double max_scale = 4294967296.0;
};

class LossScaler {
 public:
  // Throws Error listing every option that makes no sense.
  explicit LossScaler(const LossScalerOptions& options = {});

  double scale() const { return scale_; }
  // After a step: whether it was skipped for a gradient that was not finite.
  void Update(bool overflow);

  // What a checkpoint saves.
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

#endif  // APOGEE_OPTIM_LOSS_SCALER_H_
