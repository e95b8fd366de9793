// SPDX-License-Identifier: Apache-2.0

// Adan (Xie et al., "Adan: Adaptive Nesterov Momentum Algorithm", 2022): element-wise, so that it
// runs on each rank's part of a tensor.
//
//   Adan optimizer(model.Parameters(), {.lr = 1e-2});
#ifndef OUTSIDE_APP_ADAN_H_
#define OUTSIDE_APP_ADAN_H_

#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apogee/apogee.h"

namespace outside {

struct AdanOptions {
  double lr = 1e-3;
  std::array<double, 3> betas = {0.98, 0.92, 0.99};
  double eps = 1e-8;
  double weight_decay = 0;

  static std::vector<apogee::optim::OptionField<AdanOptions>> Fields();
};

struct AdanRule : apogee::optim::RuleOf<AdanOptions> {
  static constexpr const char* kName = "adan";
  explicit AdanRule(std::vector<AdanOptions> groups) : RuleOf(kName, std::move(groups)) {}

  apogee::optim::OptimizerTraits traits() override { return {.shards = true}; }
  void Update(const apogee::optim::RuleStep& step) override;

 protected:
  void States(const Subject&, std::vector<apogee::optim::StateSpec>& specs) const override {
    specs = {{"m"}, {"v"}, {"n"}, {"prev"}};
  }
};
using Adan = apogee::optim::OptimizerOf<AdanRule>;

}  // namespace outside

#endif  // OUTSIDE_APP_ADAN_H_
