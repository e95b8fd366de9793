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

#include "apogee/optim/typed_optimizer.h"

namespace apogee::optim {

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;  // L2: added to the gradient
  bool nesterov = false;    // needs momentum > 0 and no dampening
  bool maximize = false;

  std::vector<std::string> Problems() const;
  static std::vector<OptionField<SgdOptions>> Fields();
};
extern template class TypedOptimizer<SgdOptions>;

class Sgd : public TypedOptimizer<SgdOptions> {
 public:
  Sgd(std::vector<autograd::ParameterPtr> params, const SgdOptions& options)
      : Sgd({{std::move(params), options}}) {}
  explicit Sgd(std::vector<ParamGroup<SgdOptions>> groups)
      : TypedOptimizer("sgd", std::move(groups)) {}

  bool SupportsShards() const override { return true; }
  bool DecidesOnDevice() const override { return true; }

 protected:
  std::span<const StateSpec> StatesUnder(const ParamView& view,
                                         const SgdOptions& options) const override;
  void Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
              std::span<const StatBuffer> totals) override;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_MOMENTUM_SGD_H_
