// SPDX-License-Identifier: Apache-2.0

// LrScheduler: sets the learning rates (and momenta) of an optimizer's groups along a schedule.
//
//   LrScheduler scheduler(optimizer, CosineSchedule({.total_steps = 1000}));
//   for (...) { optimizer.step(); scheduler.step(); }
//   scheduler.last_lr()[0];
//
// A group's base rate is what it had at construction; the schedule's value for step 0 is set then.
// When the optimizer is replaced (a plugin wrapped it), Retarget moves the schedule over. The
// optimizer must outlive the scheduler's last step() or its next Retarget; else they throw Error.
#ifndef APOGEE_OPTIM_LR_SCHEDULER_H_
#define APOGEE_OPTIM_LR_SCHEDULER_H_

#include <vector>

#include "apogee/core/status.h"
#include "apogee/optim/lr_schedule.h"
#include "apogee/optim/lr_target.h"

namespace apogee::optim {

struct LrSchedulerState {
  int64_t step = 0;
  int64_t epoch = 0;
  std::vector<double> base_lrs;
};

class LrScheduler {
 public:
  // Throws Error when the schedule cycles momentum and the optimizer has none.
  LrScheduler(LrTarget& target, LrSchedule schedule);

  // Call after each optimizer step: sets the rates of the next one.
  void step();
  // For schedules of epochs (Eden): the epoch that the next steps belong to.
  void set_epoch(int64_t epoch);
  // The rates in force, one per group.
  std::vector<double> last_lr() const;
  int64_t num_steps() const { return time_.step; }
  // Applies the schedule to another optimizer from now on. Throws Error when it has another number
  // of groups.
  void Retarget(LrTarget& target);

  // Expires when this object is destroyed.
  std::weak_ptr<const void> lifetime() const { return lifetime_.token(); }

  LrSchedulerState state_dict() const { return {time_.step, time_.epoch, base_lrs_}; }
  // Sets the rates of the saved step. On an error nothing has changed.
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

#endif  // APOGEE_OPTIM_LR_SCHEDULER_H_
