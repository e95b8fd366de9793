// SPDX-License-Identifier: Apache-2.0

#include "adan.h"

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "apogee/optim/check_options.h"
#include "host_update.h"

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
  const double scale = decision.grad_scale();
  for (const optim::ActiveParam& p : params) {
    const bool first = p.view->step() == 1;
    const auto t = static_cast<double>(p.view->step());
    const double correct_m = 1 - std::pow(o.betas[0], t), correct_v = 1 - std::pow(o.betas[1], t),
                 correct_n = std::sqrt(1 - std::pow(o.betas[2], t));
    ForHost(p, [&]<typename W>(W* w, const auto* grad) {
      const auto state = [&](const char* name) { return p.view->state(name).template data<W>(); };
      W *m = state("m"), *v = state("v"), *n = state("n"), *prev = state("prev");
      for (int64_t i = 0; i < p.view->layout().local_numel(); ++i) {
        const double g = Scaled(grad[i], scale);
        const double change = first ? 0 : g - static_cast<double>(prev[i]);
        const double ahead = g + o.betas[1] * change;
        m[i] = W(o.betas[0] * m[i] + (1 - o.betas[0]) * g);
        v[i] = W(o.betas[1] * v[i] + (1 - o.betas[1]) * change);
        n[i] = W(o.betas[2] * n[i] + (1 - o.betas[2]) * ahead * ahead);
        const double direction = (m[i] / correct_m + o.betas[1] * v[i] / correct_v) /
                                 (std::sqrt(static_cast<double>(n[i])) / correct_n + o.eps);
        w[i] = W((w[i] - o.lr * direction) / (1 + o.lr * o.weight_decay));
        prev[i] = W(g);
      }
    });
  }
}

}  // namespace outside
