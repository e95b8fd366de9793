// SPDX-License-Identifier: Apache-2.0

// HeavyBall: an optimizer that the library does not have, as a user would add it to a registry.
// Momentum of Polyak (1964), on the CPU:
//   m = momentum m + g
//   w = w - lr m
//
//   optim::OptimizerRegistry registry;
//   registry.Add<HeavyBall>("heavy_ball");
#ifndef APOGEE_TESTS_SUPPORT_HEAVY_BALL_H_
#define APOGEE_TESTS_SUPPORT_HEAVY_BALL_H_

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apogee/optim/element_update.h"
#include "apogee/optim/optimizer.h"

namespace apogee {

struct HeavyBallOptions {
  double lr = 0.01;
  double momentum = 0.9;

  static std::vector<optim::OptionField<HeavyBallOptions>> Fields() {
    using O = HeavyBallOptions;
    return {{"lr", &O::lr, optim::OptionCheck::kAtLeastZero, "learning rate"},
            {"momentum", &O::momentum, optim::OptionCheck::kDecay, "decay rate of m"}};
  }
};

struct HeavyBallElement {
  double lr, momentum;

  template <typename C>
  APOGEE_HOST_DEVICE void operator()(C g, C& w, C& m) const {
    m = C(momentum) * m + g;
    w -= C(lr) * m;
  }
};

struct HeavyBallRule : optim::RuleOf<HeavyBallOptions> {
  static constexpr const char* kName = "heavy_ball";
  explicit HeavyBallRule(std::vector<HeavyBallOptions> groups) : RuleOf(kName, std::move(groups)) {}

  optim::OptimizerTraits traits() override { return {.shards = true}; }
  void Update(const optim::RuleStep& step) override {
    const HeavyBallElement element{options(step.group).lr, options(step.group).momentum};
    optim::UpdateElements(step.params, step.decision, element, {"momentum"});
  }

 protected:
  void States(const Subject&, std::vector<optim::StateSpec>& specs) const override {
    specs = {{"momentum"}};
  }
};
using HeavyBall = optim::OptimizerOf<HeavyBallRule>;

}  // namespace apogee

#endif  // APOGEE_TESTS_SUPPORT_HEAVY_BALL_H_
