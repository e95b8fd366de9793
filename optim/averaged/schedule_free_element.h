// SPDX-License-Identifier: Apache-2.0

// The update of an element of the schedule-free optimizers (element_update.h). w is y.
//   first: z = w
//   AdamW: v = beta2 v + (1 - beta2) g^2;  inner momentum: m = beta3 m + (1 - beta3) g, used for g
//          u = inner_scale * g / (root_scale * sqrt(v) + eps);  SGD: u = g
//   u += decay * w
//   w += weight * (z - w) - move * u
//   z -= lr * u
//
//   ScheduleFreeElement{{.lr = 0.1, .weight = 0.01, .move = 0.01, ...}}(g, w, z, v);
#ifndef APOGEE_OPTIM_AVERAGED_SCHEDULE_FREE_ELEMENT_H_
#define APOGEE_OPTIM_AVERAGED_SCHEDULE_FREE_ELEMENT_H_

#include <cmath>

#include "apogee/optim/core/update_chunk.h"

namespace apogee::optim {

struct ScheduleFreeSettings {
  double lr, decay;
  double weight, move;  // of z in the average; of y along u
  bool first;           // the parameter's first update
  double beta2 = 0, eps = 0, root_scale = 1;
  double beta3 = 0, inner_scale = 1;

  bool operator==(const ScheduleFreeSettings&) const = default;
};

// The states are z; with kAdam also v, and with kInner m.
template <bool kAdam, bool kInner>
struct ScheduleFreeElement : ScheduleFreeSettings {
  template <typename Run>
  void ForVariants(const Run& run) const {
    ForValues<false, true>(*this, &ScheduleFreeElement::first, run);
  }
  template <typename C, typename... Moments>
  APOGEE_HOST_DEVICE void operator()(C g, C& w, C& z, Moments&... moments) const {
    if (first) z = w;
    C u = g;
    if constexpr (kAdam) u = Normalized(g, moments...);
    u += C(decay) * w;
    w += C(weight) * (z - w) - C(move) * u;
    z -= C(lr) * u;
  }

 private:
  template <typename C, typename... M>
  APOGEE_HOST_DEVICE C Normalized(C g, C& v, M&... m) const {
    v = C(beta2) * v + C(1 - beta2) * g * g;
    ((g = m = C(beta3) * m + C(1 - beta3) * g), ...);
    return C(inner_scale) * g / (C(root_scale) * std::sqrt(v) + C(eps));
  }
};

using ScheduleFreeSgdArgs = ElementArgs<ScheduleFreeElement<false, false>, 1>;
using ScheduleFreeAdamArgs = ElementArgs<ScheduleFreeElement<true, false>, 2>;
using ScheduleFreeInnerArgs = ElementArgs<ScheduleFreeElement<true, true>, 3>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_AVERAGED_SCHEDULE_FREE_ELEMENT_H_
