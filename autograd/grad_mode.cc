// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/grad_mode.h"

namespace apogee::autograd {
namespace {
thread_local bool grad_mode_enabled = true;
}

bool GradModeEnabled() { return grad_mode_enabled; }

GradModeGuard::GradModeGuard(bool enabled) : previous_(grad_mode_enabled) {
  grad_mode_enabled = enabled;
}
GradModeGuard::~GradModeGuard() { grad_mode_enabled = previous_; }

}  // namespace apogee::autograd
