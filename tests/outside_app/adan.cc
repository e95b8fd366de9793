// SPDX-License-Identifier: Apache-2.0

#include "adan.h"

#include <cmath>

#include "apogee/optim/check_options.h"
#include "apogee/optim/element_update.h"

namespace outside {

namespace optim = apogee::optim;

std::vector<std::string> AdanOptions::Problems() const {
  optim::OptionProblems problems;
  problems.AtLeastZero("lr", lr);
  for (const double beta : betas) problems.Decay("betas", beta);
  problems.Positive("eps", eps);
  problems.AtLeastZero("weight_decay", weight_decay);
  return problems.list();
}

std::vector<optim::OptionField<AdanOptions>> AdanOptions::Fields() {
  return {{"lr", &AdanOptions::lr},
          {"betas", &AdanOptions::betas},
          {"eps", &AdanOptions::eps},
          {"weight_decay", &AdanOptions::weight_decay}};
}

std::span<const optim::StateSpec> Adan::StatesUnder(const optim::ParamView& /*view*/,
                                                    const AdanOptions& /*options*/) const {
  using enum apogee::StateKind;
  static constexpr optim::StateSpec kStates[] = {
      {"m", kElementwise}, {"v", kElementwise}, {"n", kElementwise}, {"prev", kElementwise}};
  return kStates;
}

void Adan::Update(int group, std::span<const optim::ActiveParam> params,
                  const optim::StepDecision& decision,
                  std::span<const optim::StatBuffer> /*totals*/) {
  const AdanOptions& o = options(group);
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
  optim::UpdateElements(params, decision, element, {"m", "v", "n", "prev"});
}

}  // namespace outside
