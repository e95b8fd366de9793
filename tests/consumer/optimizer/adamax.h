// SPDX-License-Identifier: Apache-2.0

// AdaMax (Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, section 7.1), in
// the form of torch.optim.Adamax: an optimizer of one's own, without kernels.
//   m = beta1 m + (1 - beta1) g
//   u = max(beta2 u, |g| + eps)
//   w = w - lr / (1 - beta1^t) m / u
#ifndef OWN_OPTIMIZER_ADAMAX_H_
#define OWN_OPTIMIZER_ADAMAX_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

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
    for (const optim::ActiveParam& param : step.params) {
      const auto t = static_cast<double>(param.view->step());
      const double rate = o.lr / (1 - std::pow(o.betas[0], t));
      const auto update = [&](double g, auto& w, auto& m, auto& u) {
        m = o.betas[0] * m + (1 - o.betas[0]) * g;
        u = std::max(o.betas[1] * u, std::abs(g) + o.eps);
        w -= rate * m / u;
      };
      optim::UpdateEachElement(param, step.decision, update, "m", "u");
    }
  }

 protected:
  void States(const Subject&, std::vector<optim::StateSpec>& specs) const override {
    specs = {{"m"}, {"u"}};
  }
};
using AdaMax = optim::OptimizerOf<AdaMaxRule>;

#endif  // OWN_OPTIMIZER_ADAMAX_H_
