// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/schedule/lr_scheduler.h"

#include <cmath>

namespace apogee::optim {

LrScheduler::LrScheduler(LrTarget& target, LrSchedule schedule)
    : target_(&target), schedule_(std::move(schedule)) {
  APOGEE_CHECK(schedule_.lr, "LrScheduler: the schedule has no learning rate function");
  APOGEE_CHECK(!schedule_.momentum || target.has_momentum(),
               "LrScheduler: the schedule cycles momentum, which this optimizer does not have; set "
               "cycle_momentum = false");
  for (int group = 0; group < target.num_groups(); ++group) base_lrs_.push_back(target.lr(group));
  Apply();
}

void LrScheduler::Apply() {
  APOGEE_CHECK(!target_.is_gone(),
               "LrScheduler: the optimizer whose rates it sets has been destroyed; keep the "
               "optimizer for as long as its schedule steps, or Retarget the schedule");
  for (size_t g = 0; g < base_lrs_.size(); ++g) {
    target_->set_lr(static_cast<int>(g), schedule_.lr(time_, base_lrs_[g]));
    if (schedule_.momentum) target_->set_momentum(static_cast<int>(g), schedule_.momentum(time_));
  }
}

void LrScheduler::step() {
  ++time_.step;
  Apply();
}

void LrScheduler::set_epoch(int64_t epoch) {
  APOGEE_CHECK(epoch >= 0, "LrScheduler: epoch is ", epoch, ", must be at least 0");
  time_.epoch = epoch;
  Apply();
}

std::vector<double> LrScheduler::last_lr() const {
  std::vector<double> rates;
  for (const double base_lr : base_lrs_) rates.push_back(schedule_.lr(time_, base_lr));
  return rates;
}

void LrScheduler::Retarget(LrTarget& target) {
  APOGEE_CHECK(target.num_groups() == static_cast<int>(base_lrs_.size()),
               "LrScheduler: the new optimizer has ", target.num_groups(), " groups, the old one ",
               base_lrs_.size());
  target_ = &target;
  Apply();
}

absl::Status LrScheduler::load_state_dict(const LrSchedulerState& state) {
  if (state.base_lrs.size() != base_lrs_.size()) {
    return InvalidArgument("learning rate scheduler: the state has ", state.base_lrs.size(),
                           " groups, expected ", base_lrs_.size());
  }
  if (state.step < 0 || state.epoch < 0) {
    return InvalidArgument("learning rate scheduler: the state has step ", state.step,
                           " and epoch ", state.epoch, ", both must be at least 0");
  }
  for (const double base_lr : state.base_lrs) {
    if (!std::isfinite(base_lr)) {
      return InvalidArgument("learning rate scheduler: the state has a base rate of ", base_lr);
    }
  }
  base_lrs_ = state.base_lrs;
  time_ = {state.step, state.epoch};
  Apply();
  return absl::OkStatus();
}

}  // namespace apogee::optim
