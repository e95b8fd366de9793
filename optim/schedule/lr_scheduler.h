// SPDX-License-Identifier: Apache-2.0

// LrScheduler: sets the learning rates (and momenta) of an optimizer's groups by a schedule.
//
//   LrScheduler scheduler(optimizer, CosineSchedule({.total_steps = 1000}));
//   for (...) {
//     optimizer.step();
//     scheduler.step();
//   }
//   scheduler.last_lr()[0];
//
// A group's base rate is its rate when the scheduler is made; the constructor then sets the
// schedule's rate for step 0. If a plugin replaces the optimizer by a wrapper, Retarget makes the
// scheduler set the wrapper's rates instead. After the optimizer has been destroyed, step() throws
// Error unless Retarget was called.
#ifndef APOGEE_OPTIM_SCHEDULE_LR_SCHEDULER_H_
#define APOGEE_OPTIM_SCHEDULE_LR_SCHEDULER_H_

#include <vector>

#include "apogee/core/status.h"
#include "apogee/optim/schedule/lr_schedule.h"
#include "apogee/optim/schedule/lr_target.h"

namespace apogee::optim {

struct LrSchedulerState {
  int64_t step = 0;
  int64_t epoch = 0;
  std::vector<double> base_lrs;
};

class LrScheduler {
 public:
  // Throws Error if the schedule cycles momentum and the optimizer has none.
  LrScheduler(LrTarget& target, LrSchedule schedule);

  // Call after each optimizer step. Sets the rates of the next step.
  void step();
  // For schedules that depend on the epoch (Eden): sets the epoch of the next steps.
  void set_epoch(int64_t epoch);
  // The current rates, one per group.
  std::vector<double> last_lr() const;
  int64_t num_steps() const { return time_.step; }
  // Sets the rates of another optimizer from now on. Throws Error if it has another number of
  // groups.
  void Retarget(LrTarget& target);

  // Expires when this object is destroyed.
  std::weak_ptr<const void> lifetime() const { return lifetime_.token(); }

  LrSchedulerState state_dict() const { return {time_.step, time_.epoch, base_lrs_}; }
  // Restores step, epoch and base rates, and sets the rates. On an error nothing has changed.
  absl::Status load_state_dict(const LrSchedulerState& state);

 private:
  void Apply();

  Watched<LrTarget> target_;
  Lifetime lifetime_;
  LrSchedule schedule_;
  std::vector<double> base_lrs_;
  ScheduleTime time_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_SCHEDULE_LR_SCHEDULER_H_
