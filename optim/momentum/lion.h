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

#include "apogee/optim/typed_optimizer.h"

namespace apogee::optim {

struct LionOptions {
  double lr = 1e-4;
  std::array<double, 2> betas = {0.9, 0.99};
  double weight_decay = 0;  // decoupled
  bool maximize = false;

  std::vector<std::string> Problems() const;
  static std::vector<OptionField<LionOptions>> Fields();
};
extern template class TypedOptimizer<LionOptions>;

class Lion : public TypedOptimizer<LionOptions> {
 public:
  Lion(std::vector<autograd::ParameterPtr> params, const LionOptions& options)
      : Lion({{std::move(params), options}}) {}
  explicit Lion(std::vector<ParamGroup<LionOptions>> groups)
      : TypedOptimizer("lion", std::move(groups)) {}

  bool SupportsShards() const override { return true; }
  bool DecidesOnDevice() const override { return true; }

 protected:
  std::span<const StateSpec> StatesUnder(const ParamView& view,
                                         const LionOptions& options) const override;
  void Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
              std::span<const StatBuffer> totals) override;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_MOMENTUM_LION_H_
