// SPDX-License-Identifier: Apache-2.0

// Grad mode: whether functions record a graph. Each thread has its own; it is on by default.
//
//   {
//     NoGradGuard no_grad;                // evaluation: nothing is recorded or saved
//     Tensor logits = model(tokens);
//   }
#ifndef APOGEE_AUTOGRAD_GRAD_MODE_H_
#define APOGEE_AUTOGRAD_GRAD_MODE_H_

namespace apogee::autograd {

bool GradModeEnabled();

// Sets the mode for a scope and restores the previous one.
class GradModeGuard {
 public:
  explicit GradModeGuard(bool enabled);
  ~GradModeGuard();
  GradModeGuard(const GradModeGuard&) = delete;
  GradModeGuard& operator=(const GradModeGuard&) = delete;

 private:
  bool previous_;
};

class NoGradGuard : public GradModeGuard {
 public:
  NoGradGuard() : GradModeGuard(false) {}
};

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_GRAD_MODE_H_
