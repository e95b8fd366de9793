// SPDX-License-Identifier: Apache-2.0

// LARS (You, Gitman, Ginsburg, "Large Batch Training of Convolutional Networks", 2017): SGD that
// scales the gradient of each tensor to the size of its weights.
//
//   optim::Lars optimizer(model.Parameters(), {.lr = 1.0, .momentum = 0.9, .weight_decay = 1e-4});
//   Backward(criterion(model(x), y));
//   optimizer.step();
//   optimizer.zero_grad();
//
// Per parameter:
//   ratio = trust_coefficient |w| / (|g| + weight_decay |w| + eps), or 1 if |w| or |g| is 0
//   d = ratio (g + weight_decay w)
//   buf = momentum buf + d
//   w -= lr (nesterov ? d + momentum buf : buf)
// With momentum 0: w -= lr d. As in the paper, the ratio is inside the momentum. Norms are over the
// whole tensor, also if it is sharded; |w| is the norm of the master weights if there are any.
//
// State per element: momentum_buffer (4 bytes; 8 for f64), only with momentum.
#ifndef APOGEE_OPTIM_MOMENTUM_LARS_H_
#define APOGEE_OPTIM_MOMENTUM_LARS_H_

#include "apogee/optim/optimizer.h"

namespace apogee::optim {

struct LarsOptions {
  double lr = 1;
  double momentum = 0.9;
  double weight_decay = 0;
  double trust_coefficient = 1e-3;
  double eps = 0;
  bool nesterov = false;       // needs momentum
  bool matrices_only = false;  // ratio 1 for vectors and scalars (biases, norms)

  static std::vector<OptionField<LarsOptions>> Fields();
  void Check(OptionProblems& problems) const;
};

class LarsRule : public RuleOf<LarsOptions> {
 public:
  static constexpr const char* kName = "lars";
  explicit LarsRule(std::vector<LarsOptions> groups) : RuleOf(kName, std::move(groups)) {}

  OptimizerTraits traits() override {
    return {.shards = true, .decides_on_device = true, .num_stat_phases = 1};
  }
  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override;
  std::string ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) override;
  void Update(const RuleStep& step) override;

 protected:
  void States(const Subject& of, std::vector<StateSpec>& specs) const override {
    if (of.options.momentum != 0) specs = {{"momentum_buffer"}};
  }
};
using Lars = OptimizerOf<LarsRule>;
extern template class OptimizerOf<LarsRule>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_MOMENTUM_LARS_H_
