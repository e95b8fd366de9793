// SPDX-License-Identifier: Apache-2.0

// LrTarget: the part of an optimizer that a learning rate schedule can change. Every optimizer is
// an LrTarget. A wrapper that replaces an optimizer passes itself to LrScheduler::Retarget, and the
// schedule goes on.
//
//   class Wrapper : public Optimizer { ... };       // an LrTarget
//   scheduler.Retarget(wrapper);                    // the schedule now calls wrapper.set_lr
#ifndef APOGEE_OPTIM_SCHEDULE_LR_TARGET_H_
#define APOGEE_OPTIM_SCHEDULE_LR_TARGET_H_

#include "apogee/core/lifetime.h"

namespace apogee::optim {

class LrTarget {
 public:
  virtual ~LrTarget() = default;
  virtual int num_groups() const = 0;
  virtual double lr(int group) const = 0;
  // Throws Error for an invalid rate and changes nothing then.
  virtual void set_lr(int group, double lr) = 0;
  // The number that a one-cycle schedule cycles: momentum of SGD, beta1 of Adam.
  virtual bool has_momentum() const { return false; }
  virtual double momentum(int /*group*/) const { return 0; }
  virtual void set_momentum(int /*group*/, double /*momentum*/) {}
  // Expires when this object is destroyed. Schedules, plugins and boosters hold pointers to the
  // target and check them with it.
  std::weak_ptr<const void> lifetime() const { return lifetime_.token(); }

 private:
  Lifetime lifetime_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_SCHEDULE_LR_TARGET_H_
