// SPDX-License-Identifier: Apache-2.0

// Stochastic gradient descent with momentum, as torch.optim.SGD (Sutskever et al., "On the
// importance of initialization and momentum in deep learning", ICML 2013).
//
//   optim::Sgd optimizer(model.Parameters(), {.lr = 0.1, .momentum = 0.9, .nesterov = true});
//   optimizer.step();
//
//   g = (maximize ? -grad : grad) + weight_decay * w
//   buf = first update ? g : momentum * buf + (1 - dampening) * g
//   w -= lr * (momentum == 0 ? g : nesterov ? g + momentum * buf : buf)
// Dampening does not apply to the first gradient. lr multiplies the buffer, so a new lr acts on
// past gradients at once.
//
// State per element: momentum_buffer (4 bytes; 8 for f64), only with momentum.
#ifndef APOGEE_OPTIM_MOMENTUM_SGD_H_
#define APOGEE_OPTIM_MOMENTUM_SGD_H_

#include "apogee/optim/optimizer.h"

namespace apogee::optim {

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;  // L2: added to the gradient
  bool nesterov = false;    // needs momentum > 0 and no dampening
  bool maximize = false;

  static std::vector<OptionField<SgdOptions>> Fields();
  void Check(OptionProblems& problems) const;
};

struct SgdRule : RuleOf<SgdOptions> {
  static constexpr const char* kName = "sgd";
  explicit SgdRule(std::vector<SgdOptions> groups) : RuleOf(kName, std::move(groups)) {}

  OptimizerTraits traits() override { return {.shards = true, .decides_on_device = true}; }
  void Update(const RuleStep& step) override;

 protected:
  void States(const Subject& of, std::vector<StateSpec>& specs) const override {
    if (of.options.momentum != 0) specs = {{"momentum_buffer"}};
  }
};
using Sgd = OptimizerOf<SgdRule>;
extern template class OptimizerOf<SgdRule>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_MOMENTUM_SGD_H_
