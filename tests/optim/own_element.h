// SPDX-License-Identifier: Apache-2.0

// Elements of a user's own optimizer, for element_update_test.cc. NAdam-like: two states that are
// written, one that is only read, and settings of each parameter.
//   m = beta m + (1 - beta) g;  v = max(0.9 v, |g|);  w -= lr mask m / (sqrt(v) + eps)
#ifndef APOGEE_TESTS_OPTIM_OWN_ELEMENT_H_
#define APOGEE_TESTS_OPTIM_OWN_ELEMENT_H_

#include <cmath>

#include "apogee/optim/element_update.h"

namespace apogee::optim {

struct OwnElement {
  static constexpr int kNumInputs = 1;
  double lr, beta, eps;

  template <typename C>
  APOGEE_HOST_DEVICE void operator()(C g, C& w, C& m, C& v, const C& mask) const {
    m = C(beta) * m + C(1 - beta) * g;
    v = std::fmax(C(0.9) * v, std::fabs(g));
    w -= C(lr) * mask * (m / (std::sqrt(v) + C(eps)));
  }
};

// Has no kernel for GPUs.
struct CpuElement {
  double lr;

  template <typename C>
  APOGEE_HOST_DEVICE void operator()(C g, C& w) const {
    w -= C(lr) * g;
  }
};

}  // namespace apogee::optim

#endif  // APOGEE_TESTS_OPTIM_OWN_ELEMENT_H_
