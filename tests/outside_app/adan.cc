// SPDX-License-Identifier: Apache-2.0

#include "adan.h"

#include <cmath>

#include "apogee/optim/element_update.h"

namespace outside {

namespace optim = apogee::optim;

std::vector<optim::OptionField<AdanOptions>> AdanOptions::Fields() {
  using O = AdanOptions;
  using enum optim::OptionCheck;
  return {{"lr", &O::lr, kAtLeastZero, "learning rate"},
          {"betas", &O::betas, kDecay, "decay rates of m, v and n"},
          {"eps", &O::eps, kPositive, "added to the root of n"},
          {"weight_decay", &O::weight_decay, kAtLeastZero, "divides the weights"}};
}

void AdanRule::Update(const optim::RuleStep& step) {
  const AdanOptions& o = options(step.group);
  const auto element = [&](const optim::ActiveParam& p) {
    const bool first = p.view->step() == 1;
    const auto t = static_cast<double>(p.view->step());
    const double correct_m = 1 - std::pow(o.betas[0], t), correct_v = 1 - std::pow(o.betas[1], t),
                 correct_n = std::sqrt(1 - std::pow(o.betas[2], t));
    return [=, &o](auto g, auto& w, auto& m, auto& v, auto& n, auto& prev) {
      const double change = first ? 0 : g - prev;
      const double ahead = g + o.betas[1] * change;
      m = o.betas[0] * m + (1 - o.betas[0]) * g;
      v = o.betas[1] * v + (1 - o.betas[1]) * change;
      n = o.betas[2] * n + (1 - o.betas[2]) * ahead * ahead;
      const double direction = (m / correct_m + o.betas[1] * v / correct_v) /
                               (std::sqrt(static_cast<double>(n)) / correct_n + o.eps);
      w = (w - o.lr * direction) / (1 + o.lr * o.weight_decay);
      prev = g;
    };
  };
  optim::UpdateElements(step.params, step.decision, element, {"m", "v", "n", "prev"});
}

}  // namespace outside
