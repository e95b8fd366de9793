// SPDX-License-Identifier: Apache-2.0

// Learning rate schedules as pure functions of the step: no state, any step at any time.
//
//   LrSchedule s = CosineSchedule({.total_steps = 1000, .warmup_steps = 100, .eta_min = 1e-5});
//   double lr = s.lr({.step = 250}, /*base_lr=*/3e-4);
//   LrScheduler scheduler(optimizer, s);                       // lr_scheduler.h drives an
//   optimizer
//
// step k = 0 is the first optimizer step's. Warm-up raises the rate to base_lr in `warmup_steps`
// steps: (k + 1) / warmup_steps, and the rest of the schedule starts from its own step 0 after it.
// Past total_steps: linear goes below zero (which optimizers refuse), cosine up again, polynomial
// and one-cycle keep their last value. These are the semantics of ColossalAI's and PyTorch's
// classes of the same names.
#ifndef APOGEE_OPTIM_LR_SCHEDULE_H_
#define APOGEE_OPTIM_LR_SCHEDULE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apogee/optim/options.h"

namespace apogee::optim {

// Where training is. Only Eden reads the epoch.
struct ScheduleTime {
  int64_t step = 0;
  int64_t epoch = 0;
};

struct LrSchedule {
  std::function<double(ScheduleTime time, double base_lr)> lr;
  // Momentum, or beta1, at a time; empty when the schedule leaves it alone.
  std::function<double(ScheduleTime time)> momentum = {};
};

// The factories throw Error for options that make no sense, listing all of them.

// base_lr, after the warm-up.
struct ConstantOptions {
  int64_t warmup_steps = 0;
  std::vector<std::string> Problems() const;
  static std::vector<OptionField<ConstantOptions>> Fields();
};
LrSchedule ConstantSchedule(const ConstantOptions& options = {});

// Up by (k + 1) / (warmup_steps + 1), then in a straight line to 0 at total_steps.
struct LinearOptions {
  int64_t total_steps = 0;
  int64_t warmup_steps = 0;
  std::vector<std::string> Problems() const;
  static std::vector<OptionField<LinearOptions>> Fields();
};
LrSchedule LinearSchedule(const LinearOptions& options);

// eta_min + (base_lr - eta_min) (1 + cos(pi k / T)) / 2 with T the steps after the warm-up
// (Loshchilov and Hutter, "SGDR", ICLR 2017).
struct CosineOptions {
  int64_t total_steps = 0;
  int64_t warmup_steps = 0;
  double eta_min = 0;
  std::vector<std::string> Problems() const;
  static std::vector<OptionField<CosineOptions>> Fields();
};
LrSchedule CosineSchedule(const CosineOptions& options);

// base_lr for the share pct_start of the steps after the warm-up, then cosine.
struct FlatCosineOptions {
  int64_t total_steps = 0;
  int64_t warmup_steps = 0;
  double pct_start = 0.72;
  double eta_min = 0;
  std::vector<std::string> Problems() const;
  static std::vector<OptionField<FlatCosineOptions>> Fields();
};
LrSchedule FlatCosineSchedule(const FlatCosineOptions& options);

// base_lr * gamma^(milestones reached). Milestones count from the start of training; those inside
// the warm-up are dropped.
struct MultiStepOptions {
  std::vector<int64_t> milestones;
  double gamma = 0.1;
  int64_t warmup_steps = 0;
  std::vector<std::string> Problems() const;
  static std::vector<OptionField<MultiStepOptions>> Fields();
};
LrSchedule MultiStepSchedule(const MultiStepOptions& options);

// end_lr + (base_lr - end_lr) (1 - k / T)^power.
struct PolynomialOptions {
  int64_t total_steps = 0;
  int64_t warmup_steps = 0;
  double end_lr = 1e-4;
  double power = 1.0;
  std::vector<std::string> Problems() const;
  static std::vector<OptionField<PolynomialOptions>> Fields();
};
LrSchedule PolynomialSchedule(const PolynomialOptions& options);

// base_lr * gamma^(k / step_size), rounded down.
struct StepDecayOptions {
  int64_t step_size = 1;
  double gamma = 0.1;
  std::vector<std::string> Problems() const;
  static std::vector<OptionField<StepDecayOptions>> Fields();
};
LrSchedule StepDecaySchedule(const StepDecayOptions& options);

// base_lr * gamma^k.
struct ExponentialOptions {
  double gamma = 0.1;
  std::vector<std::string> Problems() const;
  static std::vector<OptionField<ExponentialOptions>> Fields();
};
LrSchedule ExponentialSchedule(const ExponentialOptions& options);

// Cosine periods of t_0, t_0 t_mult, t_0 t_mult^2, ... steps, each from base_lr to eta_min (SGDR).
struct CosineRestartsOptions {
  int64_t t_0 = 1;
  int64_t t_mult = 1;
  double eta_min = 0;
  std::vector<std::string> Problems() const;
  static std::vector<OptionField<CosineRestartsOptions>> Fields();
};
LrSchedule CosineRestartsSchedule(const CosineRestartsOptions& options);

// base_lr ((k^2 + B^2) / B^2)^-1/4 ((epoch^2 + E^2) / E^2)^-1/4 w, where w rises from warmup_start
// to 1 in warmup_batches steps (icefall's Eden).
struct EdenOptions {
  double lr_batches = 5000;
  double lr_epochs = 6;
  double warmup_batches = 500;
  double warmup_start = 0.5;
  std::vector<std::string> Problems() const;
  static std::vector<OptionField<EdenOptions>> Fields();
};
LrSchedule EdenSchedule(const EdenOptions& options);

// One cycle (Smith and Topin, "Super-convergence", 2019): base_lr / div_factor up to base_lr in the
// share pct_start of the steps, then down to base_lr / div_factor / final_div_factor; with
// three_phase, down to the first rate over another such share before the last descent. Momentum
// moves the other way. base_lr is the highest rate.
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
  std::vector<std::string> Problems() const;
  static std::vector<OptionField<OneCycleOptions>> Fields();
};
LrSchedule OneCycleSchedule(const OneCycleOptions& options);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_LR_SCHEDULE_H_
