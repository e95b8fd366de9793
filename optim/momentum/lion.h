// SPDX-License-Identifier: Apache-2.0

// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023).
//
//   optim::Lion optimizer(model.Parameters(), {.lr = 1e-4, .weight_decay = 0.1});
//   Backward(criterion(model(x), y));
//   optimizer.step();
//   optimizer.zero_grad();
//
//   w -= lr * weight_decay * w
//   w -= lr * sign(beta1 m + (1 - beta1) g)          // sign(0) = 0
//   m = beta2 m + (1 - beta2) g
// Every element moves by lr. Choose lr 3 to 10 times smaller than for AdamW, and weight_decay as
// much larger.
//
// State per element: exp_avg (4 bytes; 8 for f64).
#ifndef APOGEE_OPTIM_MOMENTUM_LION_H_
#define APOGEE_OPTIM_MOMENTUM_LION_H_

#include <array>

#include "apogee/optim/optimizer.h"

namespace apogee::optim {

struct LionOptions {
  double lr = 1e-4;
  std::array<double, 2> betas = {0.9, 0.99};
  double weight_decay = 0;  // decoupled
  bool maximize = false;

  static std::vector<OptionField<LionOptions>> Fields();
};

struct LionRule : RuleOf<LionOptions> {
  static constexpr const char* kName = "lion";
  explicit LionRule(std::vector<LionOptions> groups) : RuleOf(kName, std::move(groups)) {}

  OptimizerTraits traits() override { return {.shards = true, .decides_on_device = true}; }
  void Update(const RuleStep& step) override;

 protected:
  void States(const Subject&, std::vector<StateSpec>& specs) const override {
    specs = {{"exp_avg"}};
  }
};
using Lion = OptimizerOf<LionRule>;
extern template class OptimizerOf<LionRule>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_MOMENTUM_LION_H_
