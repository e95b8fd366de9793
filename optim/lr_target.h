// SPDX-License-Identifier: Apache-2.0

// What a learning rate schedule may touch of an optimizer. Every optimizer is one; a wrapper that
// substitutes an optimizer passes its own to LrScheduler::Retarget, and the schedule goes on.
#ifndef APOGEE_OPTIM_LR_TARGET_H_
#define APOGEE_OPTIM_LR_TARGET_H_

#include "apogee/core/lifetime.h"

namespace apogee::optim {

class LrTarget {
 public:
  virtual ~LrTarget() = default;
  virtual int num_groups() const = 0;
  virtual double lr(int group) const = 0;
  // Throws Error for a rate that the target cannot use; then nothing has changed.
  virtual void set_lr(int group, double lr) = 0;
  // Momentum of SGD, beta1 of Adam: what a one-cycle schedule cycles.
  virtual bool has_momentum() const { return false; }
  virtual double momentum(int /*group*/) const { return 0; }
  virtual void set_momentum(int /*group*/, double /*momentum*/) {}
  // Expires when this object is destroyed: for schedules, plugins and boosters, which point to it.
  std::weak_ptr<const void> lifetime() const { return lifetime_.token(); }

 private:
  Lifetime lifetime_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_LR_TARGET_H_
