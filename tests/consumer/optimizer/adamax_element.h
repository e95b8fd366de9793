// SPDX-License-Identifier: Apache-2.0

// The update of an element of AdaMax (Kingma and Ba, "Adam: A Method for Stochastic Optimization",
// ICLR 2015, section 7.1), in the form of torch.optim.Adamax:
//   m = beta1 m + (1 - beta1) g
//   u = max(beta2 u, |g| + eps)
//   w = w - lr / (1 - beta1^t) m / u
#ifndef OWN_OPTIMIZER_ADAMAX_ELEMENT_H_
#define OWN_OPTIMIZER_ADAMAX_ELEMENT_H_

#include <algorithm>
#include <cmath>

#include "apogee/optim/element_update.h"

struct AdaMaxElement {
  double rate, beta1, beta2, eps;

  template <typename C>
  APOGEE_HOST_DEVICE void operator()(C g, C& w, C& m, C& u) const {
    m = C(beta1) * m + C(1 - beta1) * g;
    u = std::max(C(beta2) * u, std::abs(g) + C(eps));
    w -= C(rate) * m / u;
  }
};

#endif  // OWN_OPTIMIZER_ADAMAX_ELEMENT_H_
