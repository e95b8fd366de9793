// SPDX-License-Identifier: Apache-2.0

// The update of an element of Adam and AdamW (element_update.h):
//   kL2: g += decay * w;  kBefore: w -= decay * w
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g^2;  amsgrad: vmax = max(vmax, v), used below in place of v
//   w -= step_size * m / (root_scale * sqrt(v) + eps)
//   kAfter: w -= decay * w
//
//   AdamElement<false>{{.decay_kind = DecayKind::kBefore, .decay = 1e-5, ...}}(g, w, m, v);
#ifndef APOGEE_OPTIM_ADAM_ADAM_ELEMENT_H_
#define APOGEE_OPTIM_ADAM_ADAM_ELEMENT_H_

#include <cmath>

#include "apogee/optim/core/update_chunk.h"

namespace apogee::optim {

struct AdamSettings {
  DecayKind decay_kind;
  double decay, beta1, beta2, eps;
  double step_size, root_scale;  // the bias corrections of the parameter's own step

  bool operator==(const AdamSettings&) const = default;
};

// The states are m, v and with amsgrad vmax. One division and one root per element.
template <bool kAmsgrad>
struct AdamElement : AdamSettings {
  template <typename Run>
  void ForVariants(const Run& run) const {
    using enum DecayKind;
    ForValues<kNone, kL2, kBefore, kAfter>(*this, &AdamElement::decay_kind, run);
  }
  template <typename C, typename... VMax>
  APOGEE_HOST_DEVICE void operator()(C g, C& w, C& m, C& v, VMax&... vmax) const {
    if (decay_kind == DecayKind::kL2) g += C(decay) * w;
    if (decay_kind == DecayKind::kBefore) w -= C(decay) * w;
    m = C(beta1) * m + C(1 - beta1) * g;
    v = C(beta2) * v + C(1 - beta2) * g * g;
    C second = v;
    ((second = vmax = v > vmax || v != v ? v : vmax), ...);  // NaN wins, as it should
    w -= C(step_size) * (m / (C(root_scale) * std::sqrt(second) + C(eps)));
    if (decay_kind == DecayKind::kAfter) w -= C(decay) * w;
  }
};

using AdamArgs = ElementArgs<AdamElement<false>, 2>;
using AmsgradArgs = ElementArgs<AdamElement<true>, 3>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ADAM_ADAM_ELEMENT_H_
