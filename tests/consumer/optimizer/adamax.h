// SPDX-License-Identifier: Apache-2.0

// AdaMax: an optimizer of one's own. adamax_element.h has its update.
#ifndef OWN_OPTIMIZER_ADAMAX_H_
#define OWN_OPTIMIZER_ADAMAX_H_

#include <array>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "adamax_element.h"
#include "apogee/apogee.h"

namespace optim = apogee::optim;

struct AdaMaxOptions {
  double lr = 2e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;

  std::vector<std::string> Problems() const {
    optim::OptionProblems problems;
    problems.AtLeastZero("lr", lr);
    for (const double beta : betas) problems.Decay("betas", beta);
    problems.Positive("eps", eps);
    return problems.list();
  }
  static std::vector<optim::OptionField<AdaMaxOptions>> Fields() {
    using O = AdaMaxOptions;
    return {{"lr", &O::lr}, {"betas", &O::betas}, {"eps", &O::eps}};
  }
};

class AdaMax : public optim::TypedOptimizer<AdaMaxOptions> {
 public:
  explicit AdaMax(std::vector<optim::ParamGroup<AdaMaxOptions>> groups)
      : TypedOptimizer("adamax", std::move(groups)) {}
  // The update of an element reads this element only.
  bool SupportsShards() const override { return true; }

 protected:
  std::span<const optim::StateSpec> StatesUnder(const optim::ParamView& /*view*/,
                                                const AdaMaxOptions& /*options*/) const override {
    using enum apogee::StateKind;
    static constexpr optim::StateSpec kStates[] = {{"m", kElementwise}, {"u", kElementwise}};
    return kStates;
  }
  void Update(int group, std::span<const optim::ActiveParam> params,
              const optim::StepDecision& decision,
              std::span<const optim::StatBuffer> /*totals*/) override {
    const AdaMaxOptions& o = options(group);
    const auto element = [&](const optim::ActiveParam& param) {
      const auto t = static_cast<double>(param.view->step());
      return AdaMaxElement{o.lr / (1 - std::pow(o.betas[0], t)), o.betas[0], o.betas[1], o.eps};
    };
    optim::UpdateElements(params, decision, element, {"m", "u"});
  }
};

#endif  // OWN_OPTIMIZER_ADAMAX_H_
