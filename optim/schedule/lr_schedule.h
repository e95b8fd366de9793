// SPDX-License-Identifier: Apache-2.0

// Learning rate schedules as pure functions of the step: they have no state, and any step can be
// evaluated at any time.
//
//   LrSchedule s = CosineSchedule({.total_steps = 1000, .warmup_steps = 100, .eta_min = 1e-5});
//   double lr = s.lr({.step = 250}, /*base_lr=*/3e-4);
//   LrScheduler scheduler(optimizer, s);            // lr_scheduler.h sets an optimizer's rates
//
// Step 0 is the first optimizer step. In the warm-up, the rate of step k is, unless noted otherwise
// below,
//   base_lr (k + 1) / warmup_steps
// After the warm-up, k in the formulas counts from 0 again. Past total_steps, linear goes below
// zero (optimizers refuse that), cosine goes up again, and polynomial and one-cycle keep their last
// value. The classes of the same names in ColossalAI and PyTorch do the same.
#ifndef APOGEE_OPTIM_SCHEDULE_LR_SCHEDULE_H_
#define APOGEE_OPTIM_SCHEDULE_LR_SCHEDULE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apogee/optim/options.h"

namespace apogee::optim {

// The position in training. Only Eden reads the epoch.
struct ScheduleTime {
  int64_t step = 0;
  int64_t epoch = 0;
};

struct LrSchedule {
  std::function<double(ScheduleTime time, double base_lr)> lr;
  // Momentum, or beta1. Empty if the schedule leaves it alone.
  std::function<double(ScheduleTime time)> momentum = {};
};

// The factories below throw one Error that lists every invalid option.

// Constant base_lr after the warm-up.
struct ConstantOptions {
  int64_t warmup_steps = 0;
  static std::vector<OptionField<ConstantOptions>> Fields();
};
LrSchedule ConstantSchedule(const ConstantOptions& options = {});

// A warm-up with the rate base_lr (k + 1) / (warmup_steps + 1), then a straight line from base_lr
// down to 0 at total_steps.
struct LinearOptions {
  int64_t total_steps = 0;
  int64_t warmup_steps = 0;
  static std::vector<OptionField<LinearOptions>> Fields();
  void Check(OptionProblems& problems) const;
};
LrSchedule LinearSchedule(const LinearOptions& options);

// With T the number of steps after the warm-up (Loshchilov and Hutter, "SGDR", ICLR 2017):
//   eta_min + (base_lr - eta_min) (1 + cos(pi k / T)) / 2
struct CosineOptions {
  int64_t total_steps = 0;
  int64_t warmup_steps = 0;
  double eta_min = 0;
  static std::vector<OptionField<CosineOptions>> Fields();
  void Check(OptionProblems& problems) const;
};
LrSchedule CosineSchedule(const CosineOptions& options);

// base_lr for the fraction pct_start of the steps after the warm-up, then a cosine to eta_min.
struct FlatCosineOptions {
  int64_t total_steps = 0;
  int64_t warmup_steps = 0;
  double pct_start = 0.72;
  double eta_min = 0;
  static std::vector<OptionField<FlatCosineOptions>> Fields();
  void Check(OptionProblems& problems) const;
};
LrSchedule FlatCosineSchedule(const FlatCosineOptions& options);

// base_lr * gamma^(number of milestones reached). Milestones are steps from the start of training;
// those inside the warm-up are dropped.
struct MultiStepOptions {
  std::vector<int64_t> milestones;
  double gamma = 0.1;
  int64_t warmup_steps = 0;
  static std::vector<OptionField<MultiStepOptions>> Fields();
};
LrSchedule MultiStepSchedule(const MultiStepOptions& options);

// end_lr + (base_lr - end_lr) (1 - k / T)^power, with T the number of steps after the warm-up.
struct PolynomialOptions {
  int64_t total_steps = 0;
  int64_t warmup_steps = 0;
  double end_lr = 1e-4;
  double power = 1.0;
  static std::vector<OptionField<PolynomialOptions>> Fields();
  void Check(OptionProblems& problems) const;
};
LrSchedule PolynomialSchedule(const PolynomialOptions& options);

// base_lr * gamma^floor(k / step_size). No warm-up.
struct StepDecayOptions {
  int64_t step_size = 1;
  double gamma = 0.1;
  static std::vector<OptionField<StepDecayOptions>> Fields();
};
LrSchedule StepDecaySchedule(const StepDecayOptions& options);

// base_lr * gamma^k. No warm-up.
struct ExponentialOptions {
  double gamma = 0.1;
  static std::vector<OptionField<ExponentialOptions>> Fields();
};
LrSchedule ExponentialSchedule(const ExponentialOptions& options);

// Cosine periods of t_0, t_0 t_mult, t_0 t_mult^2, ... steps, each from base_lr to eta_min (SGDR).
// No warm-up.
struct CosineRestartsOptions {
  int64_t t_0 = 1;
  int64_t t_mult = 1;
  double eta_min = 0;
  static std::vector<OptionField<CosineRestartsOptions>> Fields();
};
LrSchedule CosineRestartsSchedule(const CosineRestartsOptions& options);

// icefall's Eden, with B = lr_batches, E = lr_epochs, k the step from the start of training, and w
// rising linearly from warmup_start to 1 in warmup_batches steps:
//   base_lr ((k^2 + B^2) / B^2)^(-1/4) ((epoch^2 + E^2) / E^2)^(-1/4) w
struct EdenOptions {
  double lr_batches = 5000;
  double lr_epochs = 6;
  double warmup_batches = 500;
  double warmup_start = 0.5;
  static std::vector<OptionField<EdenOptions>> Fields();
};
LrSchedule EdenSchedule(const EdenOptions& options);

// One cycle (Smith and Topin, "Super-convergence", 2019). base_lr is the highest rate. Momentum
// moves the other way.
//   up     from base_lr / div_factor to base_lr, in the fraction pct_start of the steps
//   down   with three_phase only: back to base_lr / div_factor, in as many steps
//   end    down to base_lr / div_factor / final_div_factor, in the remaining steps
struct OneCycleOptions {
  int64_t total_steps = 0;
  double pct_start = 0.3;
  std::string anneal_strategy = "cos";  // or "linear"
  bool cycle_momentum = true;
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;
  double final_div_factor = 1e4;
  bool three_phase = false;
  static std::vector<OptionField<OneCycleOptions>> Fields();
  void Check(OptionProblems& problems) const;
};
LrSchedule OneCycleSchedule(const OneCycleOptions& options);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_SCHEDULE_LR_SCHEDULE_H_
