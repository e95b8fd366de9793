// SPDX-License-Identifier: Apache-2.0

// The updates of an element of SGD, Lion and LOMO (element_update.h).
//
//   const LionElement element{.lr = 1e-4, .decay = 1e-6, .beta1 = 0.9, .beta2 = 0.99};
//   element(g, w, m);
#ifndef APOGEE_OPTIM_MOMENTUM_MOMENTUM_ELEMENTS_H_
#define APOGEE_OPTIM_MOMENTUM_MOMENTUM_ELEMENTS_H_

#include "apogee/optim/core/update_chunk.h"

namespace apogee::optim {

struct SgdElement {
  double lr, l2;

  template <typename C>
  APOGEE_HOST_DEVICE void operator()(C g, C& w) const {
    w -= C(lr) * (g + C(l2) * w);
  }
};

struct SgdMomentumElement {
  double lr, l2, momentum;
  double buf_scale;  // 1 - dampening; 1 at the parameter's first step
  bool nesterov;

  bool operator==(const SgdMomentumElement&) const = default;
  template <typename Run>
  void ForVariants(const Run& run) const {
    ForValues<false, true>(*this, &SgdMomentumElement::nesterov, run);
  }
  template <typename C>
  APOGEE_HOST_DEVICE void operator()(C grad, C& w, C& buf) const {
    const C g = grad + C(l2) * w;
    buf = C(momentum) * buf + C(buf_scale) * g;
    w -= C(lr) * (nesterov ? g + C(momentum) * buf : buf);
  }
};

struct LionElement {
  double lr, decay, beta1, beta2;

  template <typename C>
  APOGEE_HOST_DEVICE void operator()(C g, C& w, C& m) const {
    const C direction = C(beta1) * m + C(1 - beta1) * g;
    m = C(beta2) * m + C(1 - beta2) * g;
    const C sign = direction > 0 ? C{1} : direction < 0 ? C{-1} : direction;  // 0 and NaN stay
    w = w - C(decay) * w - C(lr) * sign;
  }
};

// Clamps the gradient before the step's clip factor, which is the factor that it is called with.
struct LomoElement {
  double inv_scale, clip_value, lr, decay;

  template <typename C>
  APOGEE_HOST_DEVICE C Gradient(C clip_factor, C grad) const {
    return clip_factor * ClampTo(C(inv_scale) * grad, C(clip_value));
  }
  template <typename C>
  APOGEE_HOST_DEVICE void operator()(C g, C& w) const {
    w = w - C(decay) * w - C(lr) * g;
  }
};

using SgdArgs = ElementArgs<SgdElement, 0>;
using SgdMomentumArgs = ElementArgs<SgdMomentumElement, 1>;
using LionArgs = ElementArgs<LionElement, 1>;
using LomoArgs = ElementArgs<LomoElement, 0>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_MOMENTUM_MOMENTUM_ELEMENTS_H_
