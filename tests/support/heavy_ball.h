// SPDX-License-Identifier: Apache-2.0

// HeavyBall: an optimizer that the library does not have, as a user would add it to a registry.
// Momentum of Polyak (1964):
//   m = momentum m + g
//   w = w - lr m
//
//   optim::OptimizerRegistry registry;
//   registry.Add<HeavyBall>("heavy_ball", HeavyBallOptions{});
#ifndef APOGEE_TESTS_SUPPORT_HEAVY_BALL_H_
#define APOGEE_TESTS_SUPPORT_HEAVY_BALL_H_

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apogee/optim/check_options.h"
#include "apogee/optim/element_update.h"
#include "apogee/optim/typed_optimizer.h"

namespace apogee {

struct HeavyBallOptions {
  double lr = 0.01;
  double momentum = 0.9;

  std::vector<std::string> Problems() const {
    optim::OptionProblems problems;
    problems.AtLeastZero("lr", lr);
    problems.Decay("momentum", momentum);
    return problems.list();
  }
  static std::vector<optim::OptionField<HeavyBallOptions>> Fields() {
    return {{"lr", &HeavyBallOptions::lr}, {"momentum", &HeavyBallOptions::momentum}};
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

class HeavyBall : public optim::TypedOptimizer<HeavyBallOptions> {
 public:
  explicit HeavyBall(std::vector<optim::ParamGroup<HeavyBallOptions>> groups)
      : TypedOptimizer("heavy_ball", std::move(groups)) {}
  bool SupportsShards() const override { return true; }

 protected:
  std::span<const optim::StateSpec> StatesUnder(
      const optim::ParamView& /*view*/, const HeavyBallOptions& /*options*/) const override {
    static constexpr optim::StateSpec kStates[] = {{"momentum", StateKind::kElementwise}};
    return kStates;
  }
  void Update(int group, std::span<const optim::ActiveParam> params,
              const optim::StepDecision& decision,
              std::span<const optim::StatBuffer> /*totals*/) override {
    const HeavyBallElement element{options(group).lr, options(group).momentum};
    optim::UpdateElements(params, decision, element, {"momentum"});
  }
};

}  // namespace apogee

#endif  // APOGEE_TESTS_SUPPORT_HEAVY_BALL_H_
