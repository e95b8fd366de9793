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

  static std::vector<optim::OptionField<AdaMaxOptions>> Fields() {
    using O = AdaMaxOptions;
    using enum optim::OptionCheck;
    return {{"lr", &O::lr, kAtLeastZero, "learning rate"},
            {"betas", &O::betas, kDecay, "decay rates of m and u"},
            {"eps", &O::eps, kPositive, "added to |g|"}};
  }
};

struct AdaMaxRule : optim::RuleOf<AdaMaxOptions> {
  static constexpr const char* kName = "adamax";
  explicit AdaMaxRule(std::vector<AdaMaxOptions> groups) : RuleOf(kName, std::move(groups)) {}

  // The update of an element reads this element only.
  optim::OptimizerTraits traits() override { return {.shards = true}; }
  void Update(const optim::RuleStep& step) override {
    const AdaMaxOptions& o = options(step.group);
    const auto element = [&](const optim::ActiveParam& param) {
      const auto t = static_cast<double>(param.view->step());
      return AdaMaxElement{o.lr / (1 - std::pow(o.betas[0], t)), o.betas[0], o.betas[1], o.eps};
    };
    optim::UpdateElements(step.params, step.decision, element, {"m", "u"});
  }

 protected:
  void States(const Subject&, std::vector<optim::StateSpec>& specs) const override {
    specs = {{"m"}, {"u"}};
  }
};
using AdaMax = optim::OptimizerOf<AdaMaxRule>;

#endif  // OWN_OPTIMIZER_ADAMAX_H_
