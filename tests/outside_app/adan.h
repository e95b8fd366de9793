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
#include "apogee/optim/typed_optimizer.h"

namespace outside {

struct AdanOptions {
  double lr = 1e-3;
  std::array<double, 3> betas = {0.98, 0.92, 0.99};
  double eps = 1e-8;
  double weight_decay = 0;

  std::vector<std::string> Problems() const;
  static std::vector<apogee::optim::OptionField<AdanOptions>> Fields();
};

class Adan : public apogee::optim::TypedOptimizer<AdanOptions> {
 public:
  explicit Adan(std::vector<apogee::optim::ParamGroup<AdanOptions>> groups)
      : TypedOptimizer("adan", std::move(groups)) {}
  Adan(std::vector<apogee::autograd::ParameterPtr> params, const AdanOptions& options)
      : Adan({{std::move(params), options}}) {}
  bool SupportsShards() const override { return true; }

 protected:
  std::span<const apogee::optim::StateSpec> StatesUnder(const apogee::optim::ParamView& view,
                                                        const AdanOptions& options) const override;
  void Update(int group, std::span<const apogee::optim::ActiveParam> params,
              const apogee::optim::StepDecision& decision,
              std::span<const apogee::optim::StatBuffer> totals) override;
};

}  // namespace outside

#endif  // OUTSIDE_APP_ADAN_H_
